"""`daf compare`: two runs side by side."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import click

from daf.cli.command import Command, find_client

if TYPE_CHECKING:
    from daf.server.client import Client


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.option("--plain", is_flag=True, help="RUNS is a script with its arguments: run it plain and under DAF.")
@click.option("--budget", help="With --plain: the budget of the run under DAF.")
@click.option("--html", "html_path", type=click.Path(path_type=pathlib.Path), help="Also write it as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.argument("runs", nargs=-1, required=True, type=click.UNPROCESSED)
def compare(
    runs: tuple[str, ...], *, plain: bool, budget: str | None, html_path: pathlib.Path | None, as_json: bool
) -> None:
    """Set two runs side by side: memory by kind, peak, step, loss, gradient error, verdict.

    \b
    daf compare 4242 4243
    daf compare --plain --budget 1GiB train.py --epochs 1

    A run is a pid, an id or a name of `daf ps`, or a file that `daf export json` wrote. What stands
    behind `--` is the script's.
    """
    from daf.cli.render.comparison import as_html, rows, table
    from daf.cli.render.tables import show

    found = rows(*_documents(runs, budget, is_plain=plain))
    if as_json:
        click.echo(json.dumps([dict(zip(("what", "first", "second", "ratio"), row, strict=True)) for row in found]))
    else:
        show(table(found))
    if html_path is not None:
        html_path.write_text(as_html(found))
        click.echo(f"wrote {html_path}", err=as_json)


def _documents(runs: tuple[str, ...], budget: str | None, *, is_plain: bool) -> list[dict[str, Any]]:
    if is_plain:
        from daf.cli.runs.plain_and_daf import run_both

        if not pathlib.Path(runs[0]).is_file():
            raise click.UsageError(f"--plain runs a script, and there is no file {runs[0]!r}")
        return run_both(runs, budget)
    if len(runs) != 2:
        raise click.UsageError(f"two runs are compared, and {len(runs)} are named: {' '.join(runs)}")
    client = find_client()
    return [_document(client, name) for name in runs]


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
