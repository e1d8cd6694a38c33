"""`daf top`: all runs on one screen."""

from __future__ import annotations

import click

from daf.cli.command import Command, find_client


@click.command(cls=Command)
@click.option(
    "--interval", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
def top(interval: float) -> None:
    """Watch all runs in the terminal: budget, resident, fragmentation, bits by layer, evictions.

    Press b to set the budget of the chosen run.
    """
    from daf.cli.render.screen import run_top

    run_top(find_client(), interval)
