"""`make demo`: one plain training script three times: without DAF, with room, and while its budget falls over REST."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from daf.sizes import format_bytes

if TYPE_CHECKING:
    from daf.server import Client

SCRIPT = pathlib.Path(__file__).with_name("train.py")
TITLE = "The same script, plain and under DAF"
COLUMNS = ("", "plain", "DAF with room", "DAF, budget falling")
OnStep = Callable[[int, int], None]
MIN_STEPS = 8  # before the budget is changed: what the run needs is known by then
ROOM = 1.25  # of plain's peak
FALLS = (0.7, 0.5)  # of the need of the run with room: at a third and at two thirds of the steps
SETTINGS = {"PYTORCH_ALLOCATOR": "daf", "DAF_NAME": "demo"}


@dataclasses.dataclass(slots=True)
class Outcome:
    """What one training run printed at its end."""

    held_out_loss: float
    peak_bytes: int
    median_step_seconds: float
    saved_bytes: int
    resident_bytes: int = 0
    gradient_error: float = 0.0
    pid: int = 0


@click.command()
@click.option("--steps", default=80, show_default=True, help="Training steps of each of the three runs.")
@click.option("--bits", default="auto", show_default=True, help="Width of saved activations under DAF.")
@click.option(
    "--report",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("daf-report-demo.html"),
    show_default=True,
    help="Where to write the report of the run under DAF.",
)
def demo(steps: int, bits: str, report: pathlib.Path) -> None:
    """Train a small GPT on the standard library's sources: plain, under DAF with room, and under a falling budget."""
    from daf.cli.runs.report import write_report
    from daf.server import Client, ensure_running

    console = Console()
    address = ensure_running()
    client = Client(address)
    console.print(f"Live page: {client.page_link()}\nMetrics: {address}/metrics", soft_wrap=True, highlight=False)
    with _progress(console) as progress:
        plain = train("plain", steps, {}, progress, extra=["--count-saved"])
        settings = {**SETTINGS, "DAF_BUDGET": str(int(ROOM * plain.peak_bytes)), "DAF_BITS": bits}
        roomy = train("with room", steps, settings, progress)
        falls = Falls(client, steps, roomy.resident_bytes)
        falling = train("falling", steps, settings, progress, on_step=falls)
    for change in falls.changes:
        console.print(change, highlight=False)
    rows = _rows(plain, roomy, falling)
    console.print(_table(rows))
    write_report(report, process=falling.pid, tables=[{"title": TITLE, "columns": COLUMNS, "rows": rows}])
    console.print(f"Report: {report}", soft_wrap=True, highlight=False)


class Falls:
    """Lowers the budget twice while a run trains; `changes` says what became of it."""

    def __init__(self, client: Client, steps: int, need_bytes: int) -> None:
        self._client = client
        self._at = {(i + 1) * steps // 3: int(part * need_bytes) for i, part in enumerate(FALLS)}
        self.changes: list[str] = []

    def __call__(self, step: int, pid: int) -> None:
        if step in self._at and step >= MIN_STEPS:
            budget_bytes = self._at[step]
            answer = self._client.put_budget(budget_bytes, pid=pid)
            self.changes.append(f"step {step}: budget {format_bytes(budget_bytes)}: {answer}")


def train(
    label: str,
    steps: int,
    settings: Mapping[str, str],
    progress: Progress,
    *,
    on_step: OnStep = lambda _step, _pid: None,
    extra: list[str] | None = None,
) -> Outcome:
    """Run the training script in a process of its own, so that its peak memory is its own too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DAF_BUDGET", "DAF_BITS"))}
    environment.pop("PYTORCH_ALLOCATOR", None)
    read_end, write_end = os.pipe()
    command = [sys.executable, str(SCRIPT), "--steps", str(steps), "--report", str(write_end), *(extra or [])]
    child = subprocess.Popen(command, env={**environment, **settings}, pass_fds=[write_end])
    os.close(write_end)
    task = progress.add_task(label, total=steps, loss="")
    result: dict[str, float] = {}
    with os.fdopen(read_end) as lines:
        for line in lines:
            result = json.loads(line)
            if "step" in result:
                progress.update(task, completed=result["step"], loss=f"loss {result['loss']:.3f}")
                on_step(int(result["step"]), child.pid)
    if child.wait() != 0 or "held_out_loss" not in result:
        raise click.ClickException(f"the {label} run ended with code {child.returncode}; its messages are above")
    outcome = Outcome(**result, pid=child.pid)  # type: ignore[arg-type]
    if settings:
        _add_daf_figures(outcome, child.pid)
    return outcome


def _add_daf_figures(outcome: Outcome, pid: int) -> None:
    from daf.cli.render.summary import final_values

    values = final_values(pid)
    outcome.saved_bytes = int(values["last_step_saved_bytes"])
    outcome.resident_bytes = int(values["peak_resident_bytes"])
    outcome.gradient_error = max(values["expected_error_ratio"], values["measured_error_ratio"])


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
        console=console,
    )


def _rows(plain: Outcome, roomy: Outcome, falling: Outcome) -> list[tuple[str, ...]]:
    """Return the comparison as text, row by row: what the terminal shows and the report repeats."""
    outcomes = (plain, roomy, falling)

    def row(label: str, values: list[float], show: Callable[[float], str]) -> tuple[str, ...]:
        shares = ["", *(f" ({value / values[0]:.2f})" if values[0] else "" for value in values[1:])]
        return (label, *(show(value) + share for value, share in zip(values, shares, strict=True)))

    errors = ["exact" if outcome.gradient_error == 0.0 else f"{outcome.gradient_error:.1%}" for outcome in outcomes]
    return [
        row("held-out loss", [outcome.held_out_loss for outcome in outcomes], lambda loss: f"{loss:.4f}"),
        ("gradient error", *errors),
        row("saved activations at the end", [outcome.saved_bytes for outcome in outcomes], format_bytes),
        row("peak memory over imports", [outcome.peak_bytes for outcome in outcomes], format_bytes),
        row("median step", [outcome.median_step_seconds for outcome in outcomes], lambda s: f"{1000 * s:.0f} ms"),
    ]


def _table(rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=TITLE)
    for column in COLUMNS:
        table.add_column(column, justify="left" if not column else "right")
    for cells in rows:
        table.add_row(*cells)
    return table
