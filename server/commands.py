"""The terminal commands that look at runs and steer them. Each parses; what is shown is rendered in `tables`."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import Any

import click

from daf.server.settings import DEFAULT_HOST, DEFAULT_PORT


class Command(click.Command):
    """A command whose failures are one line: what DAF says went wrong."""

    def invoke(self, ctx: click.Context) -> Any:
        from daf.errors import DafError

        try:
            return super().invoke(ctx)
        except DafError as error:
            is_unknown = getattr(error, "status", 0) == 404
            raise click.ClickException(f"{error}{'; `daf ps` lists what there is' if is_unknown else ''}") from None
        except OSError as error:
            if error.filename is None:  # not about a file that was named: a closed pipe, say
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from None


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.command(cls=Command)
@click.option(
    "--host",
    default=DEFAULT_HOST,
    show_default=True,
    help="Address to listen on. Others than loopback need the token for reading too.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port; 0 takes a free one, and so does the default one where it is taken.",
)
@click.option("--allow-host", multiple=True, help="A further name under which the sidecar may be asked for.")
@click.option(
    "--idle-exit",
    type=click.FloatRange(0),
    default=0.0,
    help="End after so many seconds in which nothing needed it; 0 for never.",
)
@click.option("--quiet", is_flag=True, help="Print no link.")
@click.option("--unlimited-rate", is_flag=True, help="Take any number of requests a second, for tests and benchmarks.")
def serve(
    host: str, port: int, allow_host: tuple[str, ...], *, idle_exit: float, quiet: bool, unlimited_rate: bool
) -> None:
    """Serve the live page, the API and the metrics of all DAF runs of yours on this machine.

    \b
    Prints the page's address, with a one-time link that may change budgets. Open it anew with `daf page`.
    """
    from daf.allocator.runtime import make_runtime_dir
    from daf.server.serve import serve as run_server
    from daf.server.settings import Limits, Settings
    from daf.server.state import Sidecar

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    names = frozenset(name.lower() for name in allow_host)
    settings = Settings(
        make_runtime_dir(), host, port, names, limits=Limits.without_rates() if unlimited_rate else Limits()
    )

    def announce(sidecar: Sidecar) -> None:
        if quiet:
            return
        click.echo(f"address  {sidecar.address}")
        click.echo(f"page     {sidecar.address}/#code={sidecar.keyring.new_code()}")
        click.echo(f"metrics  {sidecar.address}/metrics")
        click.echo(f"token    {settings.token_path}")

    run_server(settings, announce=announce, idle_exit_seconds=idle_exit)


@click.command(cls=Command)
def page() -> None:
    """Print a link that opens the live page with the right to change budgets; starts a sidecar if need be."""
    client = _started_client()
    click.echo(client.page_link())


@click.command(cls=Command)
@_json
def ps(as_json: bool) -> None:
    """List DAF processes: the living, the finished, the crashed."""
    from daf.server.tables import process_table, show

    client = _client()
    processes = client.processes()
    if as_json:
        click.echo(json.dumps(processes, indent=2))
        return
    stats = {one["process"]: one for one in client.get("/v1/stats")["processes"]}
    show(process_table(processes["processes"], stats), empty="No DAF process: start one with `daf run train.py`.")


@click.command(cls=Command)
@click.argument("size", required=False)
@click.option("--pid", type=click.IntRange(1), help="The process; not needed where only one runs.")
@click.option("--job", help="All ranks of this job, or of the run of this name.")
@click.option("--rank", type=click.IntRange(0), help="One rank of the job.")
@click.option("--dry-run", is_flag=True, help="Only say what would be evicted.")
@click.option(
    "--wait", type=click.FloatRange(0, 30), default=5.0, show_default=True, help="Seconds to wait for the outcome."
)
@_json
def budget(
    size: str | None, *, pid: int | None, job: str | None, rank: int | None, dry_run: bool, wait: float, as_json: bool
) -> None:
    """Show the budget, or change it to SIZE while training goes on.

    \b
    daf budget 2GiB            a number of bytes
    daf budget 50% --pid 4711  half of what the process started with
    """
    from daf.server.tables import budget_table, outcome_table, show

    client = _client()
    where: dict[str, Any] = {"pid": pid, "job": job, "rank": rank}
    if size is None:
        found = client.get("/v1/budget", process=pid, job=job, rank=rank)
        click.echo(json.dumps(found, indent=2)) if as_json else show(budget_table(found["processes"]))
        return
    answer = client.put_budget(size, dry_run=dry_run, wait=wait, **where)
    if as_json:
        click.echo(json.dumps({"state": answer.state, "outcomes": answer.outcomes}, indent=2))
    else:
        show(outcome_table(answer.outcomes))
    if answer.state == "refused":
        raise SystemExit(1)


@click.command(cls=Command)
@click.option("-f", "--follow", is_flag=True, help="Go on as they come.")
@click.option("-n", "--last", type=click.IntRange(0), default=50, show_default=True, help="How many of the past ones.")
@click.option("--kind", help="Only this kind: evict, resize, oom, change, process, ...")
@_json
def events(follow: bool, last: int, kind: str | None, as_json: bool) -> None:
    """Print what happened: evictions, resizes, OOMs, processes that came and went."""
    from daf.server.client import Events

    found = Events(_client(), kind)
    past = found.new()
    _print_events(past[max(0, len(past) - last) :], as_json)
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        while follow:
            time.sleep(0.5)
            _print_events(found.new(), as_json)


EXPORTS = {"snapshot": "pickle", "trace": "trace.json", "json": "json"}


@click.command(cls=Command)
@click.argument("kind", type=click.Choice(list(EXPORTS)))
@click.option("--pid", type=click.IntRange(1), help="The process; not needed where there is only one.")
@click.option("--job", help="The run of this name or job.")
@click.option("--rank", type=click.IntRange(0), help="One rank of the job.")
@click.option("-o", "--output", help="The file to write; - for stdout.  [default: daf.<kind>]")
def export(kind: str, *, pid: int | None, job: str | None, rank: int | None, output: str | None) -> None:
    """Write a run for another tool.

    \b
    snapshot  opens in PyTorch's memory viewer (pytorch.org/memory_viz)
    trace     opens in Perfetto (ui.perfetto.dev) and chrome://tracing
    json      everything that is known
    """
    route = "/v1/report" if kind == "json" else f"/v1/{kind}"
    output = output or f"daf.{EXPORTS[kind]}"
    content = _client().raw(route, process=pid, job=job, rank=rank)
    with click.open_file(output, "wb") as file:
        file.write(content)
    if output != "-":
        click.echo(f"wrote {output}")


@click.command(cls=Command)
def clean() -> None:
    """Forget all runs that have ended: their stats pages and histories."""
    from daf.allocator.runtime import runtime_dir
    from daf.server.runtime import clean as clean_folder

    num_removed = clean_folder(runtime_dir(), all_ended=True)
    click.echo(f"forgot {num_removed} ended runs")


@click.command(cls=Command)
@click.option(
    "--interval", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
def top(interval: float) -> None:
    """Watch all runs in the terminal: budget, resident, fragmentation, bits by layer, evictions.

    Press b to set the budget of the chosen run.
    """
    from daf.server.top import run_top

    run_top(_client(), interval)


def _print_events(found: list[dict[str, Any]], as_json: bool) -> None:
    from daf.server.tables import event_line

    for event in found:
        click.echo(json.dumps(event) if as_json else event_line(event))


def _client() -> Any:
    from daf.server.client import Client

    return Client.find()


def _started_client() -> Any:
    from daf.server import Client, ensure_running

    return Client(ensure_running())
