"""`daf compare`: two runs side by side."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import click

from daf.cli.command import Command, find_client

if TYPE_CHECKING:
    from daf.server.client import Client


@click.command(cls=Command)
@click.argument("first")
@click.argument("second")
@click.option("--html", "html_path", type=click.Path(path_type=pathlib.Path), help="Also write it as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(first: str, second: str, html_path: pathlib.Path | None, as_json: bool) -> None:
    """Set two runs side by side: memory by kind, peak, step, gradient error, verdict.

    \b
    A run is a pid, an id or a name of `daf ps`, or a file that `daf export json` wrote.
    """
    from daf.cli.render.comparison import as_html, rows, table
    from daf.cli.render.tables import show

    client = find_client()
    runs = [_document(client, name) for name in (first, second)]
    found = rows(*runs)
    if as_json:
        click.echo(json.dumps([dict(zip(("what", "first", "second", "ratio"), row, strict=True)) for row in found]))
    else:
        show(table(found))
    if html_path is not None:
        html_path.write_text(as_html(found))
        click.echo(f"wrote {html_path}")


def _document(client: Client, name: str) -> dict[str, Any]:
    """Return the report of the run that `name` means."""
    path = pathlib.Path(name)
    if path.is_file():
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise click.ClickException(f"{name} is not what `daf export json` writes: {error}") from None
        if not isinstance(found, dict) or "stats" not in found:
            raise click.ClickException(f"{name} is not what `daf export json` writes: it has no stats")
        return found
    is_id = name.replace("-", "").isdigit()
    return dict(client.get("/v1/report", **({"process": name} if is_id else {"job": name})))
