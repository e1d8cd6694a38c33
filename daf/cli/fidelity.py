"""`daf fidelity`: run a script under DAF for a few steps and print what compression does to its gradient."""

from __future__ import annotations

import contextlib
import runpy
import sys
from typing import TYPE_CHECKING

import click

from daf.sizes import format_bytes

if TYPE_CHECKING:
    from daf.quant.measure.gradient import Fidelity

_LEARNING_STEPS = 4  # before the first measurement: the plan is in force from the second step on


class _EnoughError(BaseException):
    """Ends the script once all measurements are made. Not an Exception, so that the script does not catch it."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--budget", default="auto", help="Bytes that tensors and saved activations may take.")
@click.option("--bits", default="auto", help="Width of saved activations: auto, 1 to 8.")
@click.option("--ratio", default="16", help="With --bits auto: how many times less to store than plain torch does.")
@click.option("--steps", default=3, show_default=True, help="Steps to measure; the last is printed.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def fidelity(script: str, arguments: tuple[str, ...], steps: int, **settings: str) -> None:
    """Run SCRIPT until the gradient was measured STEPS times, then print error, cosine and bias by layer."""
    import daf
    from daf.config import Config

    sys.argv = [script, *arguments]
    with daf.Session(Config.read(settings)) as session:
        monitor = session.engine.monitor
        hear, num_left = monitor.on_measured, steps

        def on_measured(total: Fidelity) -> None:
            nonlocal num_left
            hear(total)
            num_left -= 1
            if num_left <= 0:
                raise _EnoughError

        monitor.on_measured = on_measured
        monitor.every, monitor.first = 1, _LEARNING_STEPS
        with contextlib.suppress(_EnoughError, SystemExit):
            runpy.run_path(script, run_name="__main__")
        stats = session.stats()
    if monitor.total is None:
        raise click.ClickException(f"{script} ended before its step {_LEARNING_STEPS}: nothing was measured")
    _print_table([*monitor.layers, monitor.total], stats)


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
