"""The command: budgets from what plain training needs down to the least, and the batch that a budget holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from daf.cli.fit import batch
from daf.cli.fit.trial import Trial, Trials, failed
from daf.sizes import format_bytes, parse_bytes

NUM_BUDGETS = 5
NUM_HALVINGS = 3  # of the doubt between the least budget that fits and the next, which does not
ROOM = 1.03  # a budget that is tried or named has a little more than what was counted


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--budget", help="What there is: how far the batch could grow within it is said too.")
@click.option(
    "--batch-arg", metavar="OPTION", help="SCRIPT's option for its batch: the largest within --budget is tried."
)
@click.option("--steps", type=click.IntRange(3, 1000), default=8, show_default=True, help="Steps at each budget.")
@click.option("--seconds", type=click.FloatRange(1), default=300.0, show_default=True, help="At most so long at each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def fit(
    script: str,
    arguments: tuple[str, ...],
    *,
    budget: str | None,
    batch_arg: str | None,
    steps: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Run a few steps of SCRIPT at several budgets and say what it needs.

    \b
    daf fit train.py --epochs 1
    daf fit --budget 2GiB train.py
    daf fit --budget 2GiB --batch-arg --batch-size train.py --batch-size 8
    """
    wanted = _parsed(budget)
    first_batch = _first_batch(arguments, batch_arg, wanted)
    trials = Trials([sys.executable, script, *arguments], steps, seconds)
    with click.progressbar(length=NUM_BUDGETS + 1, label="plain", file=sys.stderr, hidden=as_json) as bar:
        plain = trials.run({"DAF_BITS": "lossless"})
        if plain is None:
            raise click.ClickException(f"{script} ended before {steps} steps: nothing was measured")
        found = []
        for one in _at_budgets(trials, plain, bar):
            found.append(one)
            bar.update(1)
        bar.update(NUM_BUDGETS + 1 - bar.pos)
    answer: dict[str, Any] = {
        "plain_bytes": plain.plain_bytes,
        "exact_budget_bytes": round(ROOM * plain.plain_bytes),
        "least_bytes": min((one.budget_bytes for one in found if one.fits), default=plain.plain_bytes),
        "batch_factor": batch_factor(plain, wanted) if wanted else None,
        "trials": [asdict(one) for one in sorted(found, key=lambda one: -one.budget_bytes)],
    }
    if batch_arg:
        answer["batch"] = _largest_batch(trials, batch_arg, first_batch, plain, wanted, is_quiet=as_json)
    click.echo(json.dumps(answer, indent=2)) if as_json else _show(plain, answer, wanted)


def _parsed(budget: str | None) -> int:
    try:
        return parse_bytes(budget) if budget else 0
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _first_batch(arguments: tuple[str, ...], option: str | None, budget_bytes: int) -> int:
    if option is None:
        return 0
    if not budget_bytes:
        raise click.UsageError("--batch-arg looks for the largest batch within a budget: give --budget too")
    try:
        return batch.option_value(arguments, option)
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


def _at_budgets(trials: Trials, plain: Trial, bar: Any) -> Iterator[Trial]:
    """Try budgets downwards to the first that does not fit, then look closer between it and the last that did."""
    least = max(plain.fixed_bytes, plain.plain_bytes // 16)
    good, bad = 0, 0
    for budget_bytes in budgets_between(round(ROOM * least), round(ROOM * plain.plain_bytes)):
        one = _try(trials, budget_bytes, bar)
        yield one
        if not one.fits:
            bad = budget_bytes
            break
        good = budget_bytes
    for _ in range(NUM_HALVINGS if good and bad else 0):
        one = _try(trials, (good + bad) // 2, bar)
        good, bad = (one.budget_bytes, bad) if one.fits else (good, one.budget_bytes)
        yield one


def _try(trials: Trials, budget_bytes: int, bar: Any) -> Trial:
    bar.label = format_bytes(budget_bytes)
    bar.render_progress()
    return trials.run({"DAF_BUDGET": str(budget_bytes)}) or failed(budget_bytes)


def _largest_batch(trials: Trials, option: str, first: int, plain: Trial, budget_bytes: int, *, is_quiet: bool) -> int:
    def fits(size: int) -> bool:
        command = batch.with_value(trials.command, option, size)
        found = trials.run({"DAF_BUDGET": str(budget_bytes)}, command) is not None
        if not is_quiet:
            click.echo(f"{option} {size}: {'fits' if found else 'does not fit'}", err=True)
        return found

    return batch.largest(first, first * batch_factor(plain, budget_bytes), fits)


def _show(plain: Trial, answer: dict[str, Any], budget_bytes: int) -> None:
    from daf.cli.render.tables import make_table, show

    click.echo(f"plain training needs {format_bytes(plain.plain_bytes)}, of which {format_bytes(plain.fixed_bytes)}")
    click.echo("are parameters, gradients and optimizer state")
    table = make_table(">BUDGET", "", ">GRADIENT ERROR", ">STEP", ">PEAK")
    for row in answer["trials"]:
        one = Trial(**row)
        figures = [f"{one.error:.1%}", f"{1000 * one.step_seconds:.0f} ms", format_bytes(one.live_bytes)]
        table.add_row(
            format_bytes(one.budget_bytes), "fits" if one.fits else "does not fit", *(figures if one.fits else [])
        )
    show(table)
    click.echo(f"exact from {format_bytes(answer['exact_budget_bytes'])} on; the least that was seen to do: ", nl=False)
    click.echo(format_bytes(answer["least_bytes"]))
    if budget_bytes:
        factor = batch_factor(plain, budget_bytes)
        click.echo(f"within {format_bytes(budget_bytes)} the batch could be {factor:.1f} times as large and exact")
    if "batch" in answer:
        click.echo(f"the largest batch that fits {format_bytes(budget_bytes)}, compressed where it must be: ", nl=False)
        click.echo(answer["batch"])
