"""`daf events`: what happened, one line each."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import click

from daf.cli.command import Command, as_json_option, find_client


@click.command(cls=Command)
@click.option("-f", "--follow", is_flag=True, help="Go on as they come.")
@click.option("-n", "--last", type=click.IntRange(0), default=50, show_default=True, help="How many of the past ones.")
@click.option("--kind", help="Only this kind: evict, resize, oom, change, process, ...")
@as_json_option
def events(follow: bool, last: int, kind: str | None, as_json: bool) -> None:
    """Print what happened: evictions, resizes, OOMs, processes that came and went."""
    from daf.server.client import Events

    found = Events(find_client(), kind)
    past = found.new()
    _print_events(past[max(0, len(past) - last) :], as_json)
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        while follow:
            time.sleep(0.5)
            _print_events(found.new(), as_json)


def _print_events(found: list[dict[str, Any]], as_json: bool) -> None:
    from daf.cli.render.tables import event_line

    for event in found:
        click.echo(json.dumps(event) if as_json else event_line(event))
