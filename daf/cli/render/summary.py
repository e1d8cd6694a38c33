"""What a finished run has to say, read from the stats page it left behind."""

from __future__ import annotations

from typing import Any

import click

from daf.allocator.stats import reader
from daf.sizes import format_bytes


def final_values(pid: int) -> dict[str, int | float]:
    """Return the last values that process `pid` published; empty where it published none."""
    pages = [page for page in reader.discover() if page.identity.pid == pid]
    if not pages:
        return {}
    latest = max(pages, key=lambda page: page.identity.started_at)
    return dict(latest.snapshot().values)


def print_summary(pid: int) -> None:
    """Print, to standard error, what DAF did for process `pid`."""
    values = final_values(pid)
    if not values:
        click.echo("daf: the script saved nothing for backward, so there is nothing to tell", err=True)
        return
    peak, raw = values["peak_resident_bytes"], values["peak_saved_raw_bytes"]
    lines = [
        f"budget {format_bytes(values['budget_bytes'])}, peak resident {format_bytes(peak)}",
        f"saved activations: {format_bytes(raw)} held in at most {format_bytes(values['peak_saved_bytes'])}",
        f"{values['steps_total']:.0f} steps, {values['evictions_total']:.0f} evictions, "
        f"{values['oom_total']:.0f} out of memory",
    ]
    lines += [found["text"] for found in verdicts(pid)[:2]]
    for line in lines:
        click.echo(f"daf: {line}", err=True)


def verdicts(pid: int) -> list[dict[str, Any]]:
    """Return what the rules make of the run of process `pid`; nothing where nobody answers."""
    from daf.errors import DafError
    from daf.server import Client

    try:
        return list(Client.find().get("/v1/verdict", process=pid)["verdicts"])
    except DafError:
        return []
