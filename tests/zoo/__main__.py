"""`python -m tests.zoo`: train the whole zoo in every mode; print the table and write docs/zoo.md."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import pathlib
import sys
from collections.abc import Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.zoo import table
from tests.zoo.harness import MODES, STEPS, Keeper, Verdict
from tests.zoo.member import Kind, load

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "zoo.md"


def choose(patterns: tuple[str, ...]) -> list[Kind]:
    """Return the kinds whose name or family fits one of the patterns; all without patterns."""
    kinds = list(load().values())
    for pattern in patterns:
        if not any(_fits(kind, pattern) for kind in kinds):
            raise click.BadParameter(f"{pattern!r} is no model or family; models: {', '.join(k.name for k in kinds)}")
    return [kind for kind in kinds if not patterns or any(_fits(kind, pattern) for pattern in patterns)]


def _fits(kind: Kind, pattern: str) -> bool:
    return fnmatch.fnmatch(kind.name, pattern) or kind.family == pattern


def visit(kinds: list[Kind], modes: tuple[str, ...], steps: int, *, is_long: bool) -> Iterator[Verdict]:
    """Yield a verdict for every model and mode, the runs to convergence last."""
    for kind in kinds:
        keeper = Keeper(kind, steps)
        for mode in modes:
            yield keeper.judge(mode)
    for kind in kinds if is_long else []:
        if kind.long_steps:
            keeper = Keeper(kind, kind.long_steps)
            for mode in modes:
                yield keeper.judge(mode)


@click.command()
@click.option("--models", multiple=True, help="Names, patterns or families; all if left out.")
@click.option("--modes", multiple=True, type=click.Choice(list(MODES)), help="All if left out.")
@click.option("--steps", default=STEPS, show_default=True, help="Steps of the short runs.")
@click.option("--short", is_flag=True, help="Leave the runs to convergence out.")
@click.option("--json", "json_file", type=click.Path(path_type=pathlib.Path), help="Also write the verdicts here.")
@click.option("--page", is_flag=True, help="Write docs/zoo.md even when models or modes were left out.")
def main(
    *,
    models: tuple[str, ...],
    modes: tuple[str, ...],
    steps: int,
    short: bool,
    json_file: pathlib.Path | None,
    page: bool,
) -> None:
    """Train the zoo plain and under DAF, and compare."""
    kinds, chosen = choose(models), modes or tuple(MODES)
    num_runs = (len(kinds) + (0 if short else sum(kind.long_steps > 0 for kind in kinds))) * len(chosen)
    console = Console()
    verdicts: list[Verdict] = []
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("the zoo", total=num_runs)
        for verdict in visit(kinds, chosen, steps, is_long=not short):
            verdicts.append(verdict)
            progress.update(task, advance=1, description=f"{verdict.name} {verdict.mode}")
            if json_file is not None:
                json_file.write_text(json.dumps([dataclasses.asdict(v) for v in verdicts], indent=1))
    show(console, verdicts)
    if page or not (models or modes or short):
        PAGE.write_text(table.markdown(verdicts))
    sys.exit(any(verdict.fault for verdict in verdicts))


def show(console: Console, verdicts: list[Verdict]) -> None:
    out = Table(*table.HEADS)
    for verdict in verdicts:
        out.add_row(*table.cells(verdict), style="red" if verdict.fault else "")
    console.print(out)
    console.print(table.summary(verdicts))


if __name__ == "__main__":
    main()
