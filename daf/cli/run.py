"""`daf run`: a child process under DAF, the sidecar beside it, a summary at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

import click

from daf.config import Config, variable

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--budget", help="Bytes that tensors and saved activations may take: 2GiB, 512MB, 50%, auto.")
@click.option("--bits", help="Width of saved activations: auto, 1 to 8, lossless, off.")
@click.option("--ratio", help="With --bits auto: how many times less to store than plain torch does.")
@click.option("--max-error", help="With --bits auto, instead of a ratio: the gradient's relative error, such as 10%.")
@click.option("--floor", help="Planes that every saved activation keeps, however tight the budget.")
@click.option("--spill", help="A folder for saved activations that the budget has no room for even at their floors.")
@click.option("--name", help="What to call this run on the page and in metrics.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Record every allocation to this file.")
@click.option("--sidecar/--no-sidecar", default=True, show_default=True, help="Serve the live page while it runs.")
@click.option("--summary/--no-summary", default=True, show_default=True, help="Print a summary at the end.")
@click.option("-m", "module", is_flag=True, help="Run a module, as `python -m` does.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    script: str, arguments: tuple[str, ...], module: bool, sidecar: bool, summary: bool, **settings: str | None
) -> None:
    """Run SCRIPT with its ARGUMENTS under DAF.

    \b
    daf run --budget 2GiB train.py --epochs 3
    daf run --bits 2 -m mypackage.train

    Exit code and signals are the script's own.
    """
    words = {name: value for name, value in settings.items() if value is not None}
    try:
        Config.read(words)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    environment = {**os.environ, "PYTORCH_ALLOCATOR": "daf"}
    environment |= {variable(name): value for name, value in words.items()}
    if sidecar:
        _announce_sidecar()
    command = [sys.executable, *(["-m"] if module else []), script, *arguments]
    pid, returncode = call(command, environment)
    if returncode < 0:
        _tell_signal(pid, -returncode)
    if summary:
        from daf.cli.render.summary import print_summary

        print_summary(pid)
    _leave_as(returncode)


def call(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Run `command` to its end, passing signals on; return its pid and return code."""
    child = subprocess.Popen(command, env=dict(environment))

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    # A terminal sends its interrupt to the child as well, so here it is only waited out.
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return child.pid, child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_signal(pid: int, number: int) -> None:
    """Write down which signal killed the child, which could not do so itself."""
    from daf.allocator.stats import reader
    from daf.server.fleet.endings import write_killed

    for page in reader.discover():
        if page.identity.pid == pid and page.closed_at is None:
            write_killed(page.path, number)


def _announce_sidecar() -> None:
    from daf.server import Client, ensure_running

    try:
        address = Client(ensure_running()).page_link()
    except Exception as error:  # the run matters more than its page
        click.echo(f"daf: no sidecar: {error}", err=True)
    else:
        click.echo(f"daf: live page at {address}", err=True)


def _leave_as(returncode: int) -> None:
    """End as the child ended: with its code, or by its signal, so that a shell sees no difference."""
    if returncode < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    sys.exit(returncode)
