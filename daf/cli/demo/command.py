"""`make demo`: the same plain training script twice, without and with DAF, and what that changed."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from daf.sizes import format_bytes

SCRIPT = pathlib.Path(__file__).with_name("train.py")
TITLE = "The same script, plain and under DAF"
COLUMNS = ("", "plain", "DAF", "DAF / plain")
OnStep = Callable[[int, int], None]
MIN_STEPS = 8  # before the budget is changed: what the run needs is known by then
SETTINGS = {"PYTORCH_ALLOCATOR": "daf", "DAF_NAME": "demo"}


@dataclasses.dataclass(slots=True)
class Outcome:
    """What one training run printed at its end."""

    held_out_loss: float
    peak_bytes: int
    median_step_seconds: float
    saved_bytes: int
    evictions: int = 0
    pid: int = 0


@click.command()
@click.option("--steps", default=80, show_default=True, help="Training steps of each of the two runs.")
@click.option("--bits", default="auto", show_default=True, help="Width of saved activations under DAF.")
@click.option(
    "--report",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("daf-report-demo.html"),
    show_default=True,
    help="Where to write the report of the run under DAF.",
)
def demo(steps: int, bits: str, report: pathlib.Path) -> None:
    """Train a small GPT on the standard library's sources, plain and under DAF, and compare the two."""
    from daf.cli.runs.report import write_report
    from daf.server import Client, ensure_running

    console = Console()
    address = ensure_running()
    client = Client(address)
    console.print(f"Live page: {client.page_link()}\nMetrics: {address}/metrics", soft_wrap=True, highlight=False)
    with _progress(console) as progress:
        plain = train("plain", steps, {}, progress, extra=["--count-saved"])
        budget = plain.peak_bytes
        change = ""

        def shrink_midway(step: int, pid: int) -> None:
            nonlocal change
            if step == steps // 2 >= MIN_STEPS:
                values = client.get("/v1/stats", process=pid)["processes"][0]["values"]
                smaller = tight_budget(values)
                answer = client.put_budget(smaller, pid=pid)
                change = f"step {step}: budget {format_bytes(budget)} -> {format_bytes(smaller)}: {answer}"

        settings = {**SETTINGS, "DAF_BUDGET": str(budget), "DAF_BITS": bits}
        under_daf = train("DAF", steps, settings, progress, on_step=shrink_midway)
    if change:
        console.print(change, highlight=False)
    rows = _rows(plain, under_daf)
    console.print(_table(rows))
    write_report(report, process=under_daf.pid, tables=[{"title": TITLE, "columns": COLUMNS, "rows": rows}])
    console.print(f"Report: {report}", soft_wrap=True, highlight=False)


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


def tight_budget(values: Mapping[str, float]) -> int:
    """Return so little that saved activations have to lose bits: room for all tensors and half of the planes.

    Where tensors and planes have their peaks at different times that might be plenty: a quarter of the planes goes
    from the peak of both together.
    """
    planes = values["peak_plane_bytes"]
    wanted = min(values["peak_tensor_bytes"] + planes / 2, values["peak_live_bytes"] - planes / 4)
    return int(max(1.06 * values["peak_held_bytes"], wanted))


def _add_daf_figures(outcome: Outcome, pid: int) -> None:
    from daf.cli.render.summary import final_values

    values = final_values(pid)
    outcome.saved_bytes = int(values["peak_saved_bytes"])
    outcome.evictions = int(values["evictions_total"])


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>5}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
        console=console,
    )


def _rows(plain: Outcome, under_daf: Outcome) -> list[tuple[str, ...]]:
    """Return the comparison as text, row by row: what the terminal shows and the report repeats."""

    def row(label: str, a: float, b: float, show: Callable[[float], str]) -> tuple[str, ...]:
        return (label, show(a), show(b), f"{b / a:.3f}" if a else "")

    return [
        row("held-out loss", plain.held_out_loss, under_daf.held_out_loss, lambda loss: f"{loss:.3f}"),
        row("saved activations", plain.saved_bytes, under_daf.saved_bytes, format_bytes),
        row("peak memory over imports", plain.peak_bytes, under_daf.peak_bytes, format_bytes),
        row("median step", plain.median_step_seconds, under_daf.median_step_seconds, lambda s: f"{1000 * s:.0f} ms"),
        ("evictions", "", str(under_daf.evictions), ""),
    ]


def _table(rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=TITLE)
    for column in COLUMNS:
        table.add_column(column, justify="left" if not column else "right")
    for cells in rows:
        table.add_row(*cells)
    return table
