"""`daf budget`: show or change the budget of a run."""

from __future__ import annotations

import json
from typing import Any

import click

from daf.cli.command import Command, as_json_option, find_client, run_options


@click.command(cls=Command)
@click.argument("size", required=False)
@run_options
@click.option("--dry-run", is_flag=True, help="Only say what would be evicted.")
@click.option("--force", is_flag=True, help="Even where the machine has not so much memory.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 30),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the outcome; of a job with several ranks at least 30.",
)
@as_json_option
def budget(
    size: str | None,
    *,
    pid: str | None,
    job: str | None,
    rank: int | None,
    dry_run: bool,
    force: bool,
    wait: float,
    as_json: bool,
) -> None:
    """Show the budget, or change it to SIZE while training goes on.

    \b
    daf budget 2GiB            a number of bytes
    daf budget 50% --pid 4711  half of what the process started with
    daf budget 2GiB --job 77   all ranks of a job on all its hosts, in the same step or none
    """
    from daf.cli.render.tables import budget_table, outcome_table, show
    from daf.cli.runs.job import set_for_job, spans_ranks

    client = find_client()
    where: dict[str, Any] = {"pid": pid, "job": job, "rank": rank}
    if size is None:
        found = client.get("/v1/budget", process=pid, job=job, rank=rank)
        click.echo(json.dumps(found, indent=2)) if as_json else show(budget_table(found["processes"]))
        return
    if job is not None and rank is None and pid is None and spans_ranks(client, job):
        set_for_job(client, size, job, dry_run=dry_run, force=force, wait=wait, as_json=as_json)
        return
    answer = client.put_budget(size, dry_run=dry_run, force=force, wait=wait, **where)
    if as_json:
        click.echo(json.dumps({"state": answer.state, "outcomes": answer.outcomes}, indent=2))
    else:
        show(outcome_table(answer.outcomes))
    if answer.state == "refused":
        raise SystemExit(1)
