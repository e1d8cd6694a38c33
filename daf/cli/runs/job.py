"""What `daf top` and `daf budget` do with a whole job."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from daf.server.client import Client


STEP_SECONDS = 30.0  # for the step to come in which all change


def spans_ranks(client: Client, job: str) -> bool:
    """Whether a job has more than one rank. A run that is known by its name alone is none."""
    return any(one["world_size"] > 1 and one["state"] == "live" for one in client.processes(job=job)["processes"])


def watch_job(client: Client, job: str, interval: float, *, once: bool, as_json: bool) -> None:
    """Show all ranks of a job until interrupted; once where nobody watches."""
    from rich.console import Console
    from rich.live import Live

    from daf.cli.render.job import job_screen
    from daf.cli.render.tables import WIDE

    console = Console()
    if as_json:
        click.echo(json.dumps(client.job(job), indent=2))
    elif once or not console.is_terminal:
        (console if console.is_terminal else Console(width=WIDE)).print(job_screen(client.job(job)))
    else:
        with Live(job_screen(client.job(job)), console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(job_screen(client.job(job)), refresh=True)
                time.sleep(interval)


def set_for_job(client: Client, size: str, job: str, *, dry_run: bool, force: bool, wait: float, as_json: bool) -> None:
    """Change the budget of all ranks, or of none, and say what became of it; exit 1 where it was refused."""
    from daf.cli.render.job import job_outcome_table
    from daf.cli.render.tables import show

    answer = client.put_job_budget(size, job, dry_run=dry_run, force=force, wait=max(wait, STEP_SECONDS))
    if as_json:
        click.echo(json.dumps({"state": answer.state, "outcomes": answer.outcomes}, indent=2))
    else:
        show(job_outcome_table(answer.outcomes))
    if answer.state == "refused":
        raise SystemExit(1)
