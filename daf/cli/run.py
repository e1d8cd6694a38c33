"""`daf run`: a child process under DAF, the sidecar beside it, a summary at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import click

from daf.cli import launch
from daf.config import Config
from daf.sizes import format_bytes


@click.command(context_settings=launch.CONTEXT)
@launch.setting_options
@click.option("--profile", "profiling", is_flag=True, help="Sample which lines and modules hold memory at the peak.")
@click.option("--sidecar/--no-sidecar", default=True, show_default=True, help="Serve the live page while it runs.")
@click.option("--summary/--no-summary", default=True, show_default=True, help="Print a summary at the end.")
@launch.script_arguments
def run(
    words: tuple[str, ...], *, is_module: bool, sidecar: bool, summary: bool, profiling: bool, **settings: str | None
) -> None:
    """Run SCRIPT with its ARGUMENTS under DAF: a Python script, a module, or any command that runs one.

    \b
    daf run --budget 2GiB train.py --epochs 3
    daf run --bits 2 -m mypackage.train
    daf run python train.py
    daf run torchrun --nproc_per_node=2 train.py
    daf run -- accelerate launch train.py

    Exit code and signals are the script's own.
    """
    config, variables = launch.environment_of({**settings, "profiling": "on" if profiling else None})
    command = launch.command_of(words, is_module=is_module)
    variables |= {"PYTORCH_ALLOCATOR": "daf", launch.LAUNCHED_BY: str(os.getpid())}
    _announce(config, _sidecar_link() if sidecar else "")
    started = time.time()
    pid, returncode = launch.call(command, variables)
    if returncode < 0:
        _tell_signal(pid, -returncode)
    if summary:
        from daf.cli.render.summary import print_summary

        print_summary(os.getpid(), since=started, seconds=time.time() - started)
    _leave_as(returncode)


def _announce(config: Config, link: str) -> None:
    from daf.session import share_bytes

    budget = config.budget
    size = format_bytes(budget.resolve(share_bytes(os.environ)))
    told = size if budget.num_bytes else f"{size}, {budget}"
    click.echo(f"daf: on, budget {told}{f'; live page at {link}' if link else ''}", err=True)


def _sidecar_link() -> str:
    from daf.server import Client, ensure_running

    try:
        return Client(ensure_running()).page_link()
    except Exception as error:  # the run matters more than its page
        click.echo(f"daf: no sidecar: {error}", err=True)
        return ""


def _tell_signal(pid: int, number: int) -> None:
    """Write down which signal killed the child, which could not do so itself."""
    from daf.allocator.stats import reader
    from daf.server.fleet.endings import write_killed

    for page in reader.discover():
        if page.identity.pid == pid and page.closed_at is None:
            write_killed(page.path, number)


def _leave_as(returncode: int) -> None:
    """End as the child ended: with its code, or by its signal, so that a shell sees no difference."""
    if returncode < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    sys.exit(returncode)
