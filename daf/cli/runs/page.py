"""`daf page`: a link that opens the live page."""

from __future__ import annotations

import click

from daf.cli.command import Command, start_client


@click.command(cls=Command)
def page() -> None:
    """Print a link that opens the live page with the right to change budgets; starts a sidecar if need be."""
    client = start_client()
    click.echo(client.page_link())
