"""`daf report`: a run as one HTML file."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from daf.cli.command import Command, run_options


@click.command(cls=Command)
@run_options
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="The file; default daf-report-PID.html.")
def report(pid: str | None, job: str | None, rank: int | None, output: pathlib.Path | None) -> None:
    """Write one HTML file about a run, finished or not: the live page's charts with the data inside.

    It opens offline, loads nothing, and can be passed on.
    """
    click.echo(write_report(output, process=pid, job=job, rank=rank))


def write_report(
    output: pathlib.Path | None = None, *, tables: Sequence[Mapping[str, Any]] = (), **selection: Any
) -> pathlib.Path:
    """Write the report of the selected run and return its path; `tables` are shown before all else."""
    from daf.dashboards.report import render
    from daf.server import Client

    document = Client.find().get("/v1/report", **selection)
    path = output or pathlib.Path(f"daf-report-{document['process']['pid']}.html")
    path.write_text(render({**document, "tables": list(tables)}))
    return path
