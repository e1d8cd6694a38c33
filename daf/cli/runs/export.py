"""`daf export`: a run for another tool."""

from __future__ import annotations

import click

from daf.cli.command import Command, find_client, run_options

EXPORTS = {"snapshot": "pickle", "trace": "trace.json", "json": "json"}


@click.command(cls=Command)
@click.argument("kind", type=click.Choice(list(EXPORTS)))
@run_options
@click.option("-o", "--output", help="The file to write; - for stdout.  [default: daf.<kind>]")
def export(kind: str, *, pid: str | None, job: str | None, rank: int | None, output: str | None) -> None:
    """Write a run for another tool.

    \b
    snapshot  opens in PyTorch's memory viewer (pytorch.org/memory_viz)
    trace     opens in Perfetto (ui.perfetto.dev) and chrome://tracing
    json      everything that is known
    """
    route = "/v1/report" if kind == "json" else f"/v1/{kind}"
    output = output or f"daf.{EXPORTS[kind]}"
    content = find_client().raw(route, process=pid, job=job, rank=rank)
    with click.open_file(output, "wb") as file:
        file.write(content)
    if output != "-":
        click.echo(f"wrote {output}")
