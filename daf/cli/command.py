"""What every command that looks at runs shares: failures in one line, the options that name a run, the client."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from daf.server.client import Client


MOST_CHOICES = 8  # that an error names


class Command(click.Command):
    """A command whose failures are one line: what DAF says went wrong."""

    def invoke(self, ctx: click.Context) -> Any:
        from daf.errors import DafError

        try:
            return super().invoke(ctx)
        except DafError as error:
            is_choice = getattr(error, "status", 0) == 404 or getattr(error, "body", {}).keys() & {"jobs", "processes"}
            raise click.ClickException(f"{error}{_choices() if is_choice else ''}") from None
        except OSError as error:
            if error.filename is None:  # not about a file that was named: a closed pipe, say
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from None


def _choices() -> str:
    """Return the runs that could have been meant, the live ones first."""
    from daf.errors import DafError

    try:
        found = find_client().processes()["processes"]
    except DafError:
        found = []
    live = [one for one in found if one["state"] == "live"]
    if not live:
        return "; `daf ps` lists what there is"
    names = ", ".join(_named(one) for one in live[:MOST_CHOICES])
    more = f" and {len(live) - MOST_CHOICES} more: `daf ps`" if len(live) > MOST_CHOICES else ""
    return f"; live: {names}{more}"


def _named(process: Mapping[str, Any]) -> str:
    job = f", --job {process['job']}" if process["job"] != process["id"] else ""
    return f"--pid {process['pid']} ({process['name']}{job})"


def _process_id(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """A pid, or an id such as 4711-90210."""
    if text is None or (re.fullmatch(r"[0-9]{1,20}(-[0-9]{1,20}){0,2}", text) and int(text.partition("-")[0]) > 0):
        return text
    raise click.BadParameter(f"{text!r} is neither a pid nor an id such as 4711-90210")


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a run: --pid, --job, --rank."""
    for option in (
        click.option("--rank", type=click.IntRange(0), help="One rank of the job."),
        click.option("--job", help="The run of this name, or all ranks of this job."),
        click.option(
            "--pid",
            callback=_process_id,
            metavar="ID",
            help="Its pid, or its id as `daf ps` prints it; not needed for one.",
        ),
    ):
        command = option(command)
    return command


def find_client() -> Client:
    """Return a client of the running sidecar, or of the stats pages where none runs."""
    from daf.server.client import Client

    return Client.find()


def start_client() -> Client:
    """Return a client of the sidecar, which is started where none runs."""
    from daf.server import Client, ensure_running

    return Client(ensure_running())
