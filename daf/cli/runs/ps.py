"""`daf ps`: all runs, live and ended."""

from __future__ import annotations

import json

import click

from daf.cli.command import Command, as_json_option, find_client


@click.command(cls=Command)
@as_json_option
def ps(as_json: bool) -> None:
    """List DAF processes: the living, the finished, the crashed."""
    from daf.cli.render.tables import process_table, show

    client = find_client()
    processes = client.processes()
    if as_json:
        click.echo(json.dumps(processes, indent=2))
        return
    stats = {one["process"]: one for one in client.get("/v1/stats")["processes"]}
    show(process_table(processes["processes"], stats), empty="No DAF process: start one with `daf run train.py`.")
