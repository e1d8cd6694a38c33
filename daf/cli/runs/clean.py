"""`daf clean`: forget what has ended."""

from __future__ import annotations

import click

from daf.cli.command import Command, find_client


@click.command(cls=Command)
def clean() -> None:
    """Forget all runs that have ended: their stats pages, their histories, and what a running sidecar knows of them."""
    forgotten = find_client().forget_ended()
    click.echo(f"forgot {len(forgotten)} ended runs")
