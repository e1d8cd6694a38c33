"""`daf top`: all runs on one screen."""

from __future__ import annotations

import click

from daf.cli.command import Command, as_json_option, find_client


@click.command(cls=Command)
@click.option(
    "--interval", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--job", help="All ranks of this job, on all its hosts.")
@click.option("--once", is_flag=True, help="With --job: print one look and end.")
@as_json_option
def top(interval: float, job: str | None, *, once: bool, as_json: bool) -> None:
    """Watch all runs in the terminal: budget, resident, fragmentation, bits by layer, evictions.

    Press b to set the budget of the chosen run.
    """
    if job is not None:
        from daf.cli.runs.job import watch_job

        watch_job(find_client(), job, interval, once=once, as_json=as_json)
        return
    if once or as_json:
        raise click.UsageError("--once and --json are for --job; `daf ps` lists all runs")
    from daf.cli.render.screen import run_top

    run_top(find_client(), interval)
