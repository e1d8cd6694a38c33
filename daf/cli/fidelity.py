"""`daf fidelity`: run a script under DAF for a few steps and print what compression does to its gradient."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from daf.cli import launch
from daf.sizes import format_bytes

if TYPE_CHECKING:
    from daf.quant.measure.gradient import Fidelity, Monitor

_LEARNING_STEPS = 4  # before the first measurement: the plan is in force from the second step on
_RATIO = "16"  # where nothing says how much to compress: what fits is exact, and there would be nothing to measure
_DECIDING = ("DAF_BUDGET", "DAF_BITS", "DAF_RATIO", "DAF_MAX_ERROR")


class _EnoughError(BaseException):
    """Ends the script once all measurements are made. Not an Exception, so that the script does not catch it."""


@click.command(context_settings=launch.CONTEXT)
@launch.setting_options
@click.option("--steps", default=3, show_default=True, help="Steps to measure; the last is printed.")
@launch.script_arguments
def fidelity(words: tuple[str, ...], is_module: bool, steps: int, **settings: str | None) -> None:
    """Run SCRIPT until the gradient was measured STEPS times, then print error, cosine and bias by layer.

    Settings and script are those of `daf run`; where no setting says how much to compress, the ratio is 16.
    """
    import daf

    os.environ.pop("PYTORCH_ALLOCATOR", None)  # the session of this command is the one to measure
    config, variables = launch.environment_of(settings)
    if not any(name in variables for name in _DECIDING):
        config, variables = launch.environment_of({**settings, "ratio": settings["ratio"] or _RATIO})
    script, *arguments = _python_words(words, is_module=is_module)
    with daf.Session(dataclasses.replace(config, name=config.name or pathlib.Path(script).name)) as session:
        monitor = session.engine.monitor
        _measure_from_now(monitor, steps)
        with contextlib.suppress(_EnoughError, SystemExit):
            _run_here(script, arguments, is_module=is_module)
        stats = session.stats()
    if monitor.total is None:
        raise click.ClickException(f"{script} ended before its step {_LEARNING_STEPS}: nothing was measured")
    _print_table([*monitor.layers, monitor.total], stats)


def _measure_from_now(monitor: Monitor, steps: int) -> None:
    """Measure every step once the plan is learned, and end the script after `steps` of them."""
    hear, num_left = monitor.on_measured, steps

    def on_measured(total: Fidelity) -> None:
        nonlocal num_left
        hear(total)
        num_left -= 1
        if num_left <= 0:
            raise _EnoughError

    monitor.on_measured = on_measured
    monitor.every, monitor.first = 1, _LEARNING_STEPS


def _python_words(words: Sequence[str], *, is_module: bool) -> list[str]:
    """Return script (or module) and arguments; another program than Python cannot be looked into."""
    executable, *rest = launch.command_of(words, is_module=is_module)
    if is_module:
        return rest[1:]
    if executable != sys.executable and not launch.is_python(executable):
        raise click.UsageError(f"{words[0]} starts processes of its own; daf fidelity measures one: give it the script")
    if not rest or rest[0].startswith("-"):
        raise click.UsageError("give a script: `daf fidelity train.py` or `daf fidelity -m package.train`")
    return rest


def _run_here(script: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run a script or module as Python would: its arguments, and its folder first on the path."""
    import torch

    sys.argv = [script, *arguments]
    sys.path.insert(0, str(pathlib.Path.cwd() if is_module else pathlib.Path(script).resolve().parent))
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except torch.OutOfMemoryError as error:
        first_line = str(error).partition("\n")[0]
        advice = "measuring keeps exact contents too; without --budget, or with a --ratio, the rest is measured alike"
        raise click.ClickException(f"{first_line} ({advice})") from None


def _print_table(rows: list[Fidelity], stats: dict[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("layer", title="what compression does to the gradient")
    for heading in ("norm", "error", "cosine", "bias"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.layer,
            f"{row.norm:.3g}",
            f"{row.error:.3f}",
            f"{row.cosine:.4f}",
            f"{row.bias:+.3f}",
        )
    Console().print(table)
    raw, stored = (format_bytes(stats[name]) for name in ("peak_raw_bytes", "peak_stored_bytes"))
    click.echo(f"saved activations: {raw} as {stored} at most")
