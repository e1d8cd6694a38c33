"""What every command that looks at runs shares: failures in one line, the options that name a run, the client."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from daf.server.client import Client


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
