"""What a finished run has to say, read from the stats page it left behind."""

from __future__ import annotations

from typing import Any

import click

from daf.allocator.stats import reader
from daf.sizes import format_bytes

Values = dict[str, int | float]
MOST_RUNS = 8  # of one launch, that are shown


def final_values(pid: int) -> Values:
    """Return the last values that process `pid` published; empty where it published none."""
    pages = [page for page in reader.discover() if page.identity.pid == pid]
    if not pages:
        return {}
    latest = max(pages, key=lambda page: page.identity.started_at)
    return dict(latest.snapshot().values)


def launched(launcher: int, since: float) -> list[reader.StatsPage]:
    """Return the pages of the runs that `daf run`, as process `launcher`, started after `since`; by rank.

    A session that gave way to the script's own before any step is left out.
    """
    found = [
        page
        for page in reader.discover()
        if page.identity.launched_by == launcher and page.identity.started_at >= since
    ]
    found = [page for page in found if page.snapshot().values["steps_total"]] or found
    return sorted(found, key=lambda page: (page.identity.rank, page.identity.started_at))


def print_summary(launcher: int, *, since: float, seconds: float) -> None:
    """Print, to standard error, what DAF did for the runs that process `launcher` started."""
    runs = launched(launcher, since)
    if not runs:
        click.echo(
            f"daf: {seconds:.1f} s; nothing was saved for backward under DAF, so there is nothing to show", err=True
        )
        return
    for page in runs[:MOST_RUNS]:
        rank = f"rank {page.identity.rank}: " if len(runs) > 1 else ""
        for line in lines_of(dict(page.snapshot().values), seconds):
            click.echo(f"daf: {rank}{line}", err=True)
        for found in verdicts(page.identity.pid)[:2]:
            click.echo(f"daf: {rank}{found['text']}", err=True)
    if len(runs) > MOST_RUNS:
        click.echo(f"daf: and {len(runs) - MOST_RUNS} more runs: `daf ps` lists them", err=True)
    click.echo(f"daf: `daf report --pid {runs[0].identity.pid}` writes the report", err=True)


def lines_of(values: Values, seconds: float) -> list[str]:
    """Return time, memory and error of a run, in three lines."""
    peak, budget = format_bytes(values["peak_resident_bytes"]), format_bytes(values["budget_bytes"])
    steps, taken = values["steps_total"], values.get("step_seconds_total", 0.0)
    each = f" of {taken / steps:.3g} s" if steps and taken else ""
    return [
        f"{seconds:.1f} s, {steps:.0f} steps{each}, {values['evictions_total']:.0f} evictions, "
        f"{values['oom_total']:.0f} out of memory",
        f"peak memory {peak} of a budget of {budget}",
        f"saved activations of the last step: {format_bytes(values['last_step_saved_bytes'])} instead of "
        f"{format_bytes(values['last_step_saved_raw_bytes'])}, gradient error {error_of(values)}",
    ]


def error_of(values: Values) -> str:
    for name in ("measured", "expected"):
        if error := values.get(f"{name}_error_ratio"):
            return f"{error:.1%} ({name})"
    return "0 (exact)" if values["last_step_saved_bytes"] >= values["last_step_saved_raw_bytes"] else "not known"


def verdicts(pid: int) -> list[dict[str, Any]]:
    """Return what the rules make of the run of process `pid`; nothing where nobody answers."""
    from daf.errors import DafError
    from daf.server import Client

    try:
        return list(Client.find().get("/v1/verdict", process=pid)["verdicts"])
    except DafError:
        return []
