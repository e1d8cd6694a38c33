"""`daf fit`: a few steps of a script at several budgets, before the long run: what it needs, what less would cost."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import click

from daf.sizes import format_bytes, parse_bytes

POLL_SECONDS = 0.05
NUM_BUDGETS = 5
ROOM = 1.03  # a budget that is tried or named has a little more than what was counted


@dataclass(frozen=True, slots=True)
class Trial:
    """What a few steps at one budget came to. `fits` is False where they ended out of memory.

    live_bytes    the most that was in use at once
    plain_bytes   what plain training would have needed for it
    fixed_bytes   of that, parameters, gradients and optimizer state
    """

    budget_bytes: int
    fits: bool
    error: float
    step_seconds: float
    live_bytes: int
    plain_bytes: int
    fixed_bytes: int


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--budget", help="What there is: how far the batch could grow within it is said too.")
@click.option("--steps", type=click.IntRange(3, 1000), default=8, show_default=True, help="Steps at each budget.")
@click.option("--seconds", type=click.FloatRange(1), default=300.0, show_default=True, help="At most so long at each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def fit(
    script: str, arguments: tuple[str, ...], *, budget: str | None, steps: int, seconds: float, as_json: bool
) -> None:
    """Run a few steps of SCRIPT at several budgets and say what it needs.

    \b
    daf fit train.py --epochs 1
    daf fit --budget 2GiB train.py
    """
    wanted = _parsed(budget)
    command = [sys.executable, script, *arguments]
    plain = run_steps(command, {"DAF_BITS": "lossless"}, steps, seconds)
    if plain is None:
        raise click.ClickException(f"{script} ended before {steps} steps: nothing was measured")
    trials = list(_trials(command, plain, steps, seconds, is_quiet=as_json))
    answer = {
        "plain_bytes": plain.plain_bytes,
        "least_bytes": min((t.budget_bytes for t in trials if t.fits), default=plain.plain_bytes),
        "batch_factor": batch_factor(plain, wanted) if wanted else None,
        "trials": [asdict(trial) for trial in trials],
    }
    click.echo(json.dumps(answer, indent=2)) if as_json else _show(plain, trials, wanted)


def _parsed(budget: str | None) -> int:
    try:
        return parse_bytes(budget) if budget else 0
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def budgets_between(least_bytes: int, most_bytes: int) -> list[int]:
    """Return budgets from the most down to the least, in equal factors.

    >>> budgets_between(100, 1600)
    [1600, 800, 400, 200, 100]
    """
    factor = (least_bytes / most_bytes) ** (1 / (NUM_BUDGETS - 1))
    return [round(most_bytes * factor**i) for i in range(NUM_BUDGETS)]


def batch_factor(plain: Trial, budget_bytes: int) -> float:
    """How many times the batch fits exactly: what does not grow with it is taken off both sides."""
    growing = plain.plain_bytes - plain.fixed_bytes
    return max(0.0, budget_bytes - plain.fixed_bytes) / growing if growing > 0 else 0.0


def _trials(command: list[str], plain: Trial, steps: int, seconds: float, *, is_quiet: bool) -> Iterator[Trial]:
    """Try budgets downwards; the first that does not fit is the last."""
    least = max(plain.fixed_bytes, plain.plain_bytes // 16)
    for budget_bytes in budgets_between(round(ROOM * least), round(ROOM * plain.plain_bytes)):
        if not is_quiet:
            click.echo(f"trying {format_bytes(budget_bytes)} ...", err=True)
        found = run_steps(command, {"DAF_BUDGET": str(budget_bytes)}, steps, seconds)
        yield found or Trial(budget_bytes, False, 0.0, 0.0, 0, 0, 0)
        if found is None:
            return


def run_steps(command: list[str], settings: Mapping[str, str], steps: int, seconds: float) -> Trial | None:
    """Run `command` under DAF until it has made so many steps; None where it ended or stood still before that."""
    with tempfile.TemporaryDirectory(prefix="daf-fit-") as folder:
        environment = {**os.environ, "PYTORCH_ALLOCATOR": "daf", "DAF_SIDECAR": "off", **settings}
        environment["DAF_RUNTIME_DIR"] = folder
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            values = _watch(child, pathlib.Path(folder), steps, seconds)
        finally:
            child.kill()
            child.wait()
    from daf.server.fleet.kinds import plain_bytes

    if values.get("steps_total", 0) < steps or values.get("oom_total"):
        return None
    fixed = sum(values.get(f"{kind}_bytes", 0) for kind in ("parameter", "gradient", "optimizer"))
    return Trial(
        budget_bytes=int(values["budget_bytes"]),
        fits=True,
        error=values.get("measured_error_ratio") or values.get("expected_error_ratio", 0.0),
        step_seconds=values.get("step_seconds", 0.0),
        live_bytes=int(values.get("peak_live_bytes", 0)),
        plain_bytes=plain_bytes(values),
        fixed_bytes=int(fixed),
    )


def _watch(child: subprocess.Popen[bytes], folder: pathlib.Path, steps: int, seconds: float) -> dict[str, float]:
    """Return the figures of the child when it has made its steps, has ended, or the time is up."""
    from daf.allocator.stats import reader

    deadline, values = time.monotonic() + seconds, {}
    while time.monotonic() < deadline:
        has_ended = child.poll() is not None
        for page in reader.discover(folder):
            values = dict(page.snapshot().values)
            page.close()
        if has_ended or values.get("steps_total", 0) >= steps:
            break
        time.sleep(POLL_SECONDS)
    return values


def _show(plain: Trial, trials: list[Trial], budget_bytes: int) -> None:
    from daf.cli.render.tables import make_table, show

    click.echo(f"plain training needs {format_bytes(plain.plain_bytes)}, of which {format_bytes(plain.fixed_bytes)}")
    click.echo("are parameters, gradients and optimizer state")
    table = make_table(">BUDGET", "", ">GRADIENT ERROR", ">STEP", ">PEAK")
    for one in trials:
        figures = [f"{one.error:.1%}", f"{1000 * one.step_seconds:.0f} ms", format_bytes(one.live_bytes)]
        table.add_row(
            format_bytes(one.budget_bytes), "fits" if one.fits else "does not fit", *(figures if one.fits else [])
        )
    show(table)
    if budget_bytes:
        factor = batch_factor(plain, budget_bytes)
        click.echo(f"within {format_bytes(budget_bytes)} the batch could be {factor:.1f} times as large and exact")
