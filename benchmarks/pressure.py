"""What a smaller budget costs: gradient error and time at 90, 70, 50, 30 and 20% of plain's peak, and at DAF_RATIO=16.

    python -m benchmarks.pressure --model resnet18 [--json FILE] [--plot FILE.svg]

The model is built inside each session and the data outside, so its peak is weights, gradients, activations and
temporaries: plain's peak over imports. Weights stand still, and every step draws its noise from its own seed, so the
gradient of the last step can be compared with plain's. Times are the fastest step of each run, over plain's fastest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import daf
from benchmarks.tools import report
from benchmarks.tools.cli import add_model_options
from benchmarks.workloads.data import DataFolder
from benchmarks.workloads.models import recipe
from benchmarks.workloads.workload import Options, Recipe, Workload
from daf.errors import DafOutOfMemoryError
from daf.sizes import format_bytes

FRACTIONS = (0.9, 0.7, 0.5, 0.3, 0.2)
RATIO = 16
NUM_STEPS = 10
UNLIMITED_BYTES = 1 << 34
COUNTED = ("kept_bytes", "recomputed_bytes", "compressed_bytes", "spilled_bytes")
COLUMNS = {
    "budget_fraction": lambda value: f"{value:.0%}",
    "budget_bytes": format_bytes,
    "outcome": str,
    "peak_resident_bytes": format_bytes,
    "grad_rel_error": lambda value: f"{value:.4f}",
    "step_ratio": lambda value: f"{value:.2f}",
    **dict.fromkeys(COUNTED, format_bytes),
}


class Run:
    """One session's training: the gradient of its last step, its fastest step, its figures."""

    def __init__(self, made_by: Recipe, num_steps: int, **settings: Any) -> None:
        with daf.Session(**settings) as session:
            workload = made_by.build()
            self.seconds = min(_step(workload, number) for number in range(num_steps))
            self.stats = session.stats()
            self.gradient = [parameter.grad.clone() for parameter in workload.trainable() if parameter.grad is not None]

    @property
    def peak_bytes(self) -> int:
        return int(self.stats["peak_resident_bytes"])


def _step(workload: Workload, number: int) -> float:
    batch = workload.make_batch(number)
    torch.manual_seed(number)
    workload.model.zero_grad()
    began = time.perf_counter()
    workload.loss(workload.model, batch).backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - began


def relative_error(ours: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the norm of the difference over the norm, all tensors taken as one vector."""
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(ours, exact, strict=True))
    return float((difference / sum(float(b.double().square().sum()) for b in exact)) ** 0.5)


def measure(model: str, options: Options, *, fractions: Sequence[float], num_steps: int) -> list[report.Row]:
    """Return a row for each part of plain's peak, and one for the ratio."""
    made_by = recipe(model, options)
    plain = Run(made_by, num_steps, budget=UNLIMITED_BYTES, bits="off")
    budgets: list[tuple[float | None, dict[str, Any]]] = [
        *((fraction, {"budget": int(fraction * plain.peak_bytes)}) for fraction in fractions),
        (None, {"budget": UNLIMITED_BYTES, "ratio": RATIO}),
    ]
    rows = []
    for fraction, settings in budgets:
        try:
            run = Run(made_by, num_steps, **settings)
        except (DafOutOfMemoryError, torch.OutOfMemoryError):
            run = None
        rows.append(_row(model, plain, run, fraction, settings["budget"]))
    return rows


def _row(model: str, plain: Run, run: Run | None, fraction: float | None, budget_bytes: int) -> report.Row:
    row: report.Row = {
        "model": model,
        "budget_fraction": fraction,
        "budget_bytes": budget_bytes if fraction is not None else None,
    }
    if run is None:
        return {**row, "outcome": "out of memory"}
    return {
        **row,
        "outcome": "trained",
        "peak_resident_bytes": run.peak_bytes,
        "grad_rel_error": relative_error(run.gradient, plain.gradient),
        "step_ratio": run.seconds / plain.seconds,
        **{name: int(run.stats.get(name, 0)) for name in COUNTED},
    }


def plot(rows: Sequence[report.Row], path: Path) -> None:
    """Draw error over budget as an SVG that needs no library."""
    points = [(row["budget_fraction"], row["grad_rel_error"]) for row in rows if row.get("grad_rel_error") is not None]
    curve = sorted((x, y) for x, y in points if x is not None)
    top = max((y for _, y in points), default=1.0) or 1.0
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 420 240" font-family="sans-serif" font-size="11">'
        '<polyline fill="none" stroke="#2563eb" stroke-width="2" points="'
        + " ".join(f"{40 + 360 * x:.1f},{210 - 180 * y / top:.1f}" for x, y in curve)
        + '"/>'
        + "".join(f'<line x1="40" x2="400" y1="{210 - 180 * y / top:.1f}" y2="{210 - 180 * y / top:.1f}" '
                  'stroke="#999" stroke-dasharray="4"/>' for x, y in points if x is None)
        + "".join(f'<text x="{40 + 360 * x:.1f}" y="225" text-anchor="middle">{x:.0%}</text>' for x, _ in curve)
        + f'<text x="4" y="34">{top:.3f}</text><text x="4" y="214">0</text>'
        + '<text x="40" y="16">gradient error over budget (part of plain\'s peak); dashed: ratio 16</text></svg>\n'
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pressure", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="of each run; default: %(default)s")
    parser.add_argument("--fractions", default=",".join(map(str, FRACTIONS)), help="default: %(default)s")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--plot", type=Path, help="draw the curve into this SVG")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    options = Options(
        batch_size=arguments.batch_size,
        seq_len=arguments.seq_len,
        scale=arguments.scale,
        dropout=arguments.dropout,
        data=DataFolder(Path(arguments.data)),
    )
    fractions = [float(word) for word in arguments.fractions.split(",")]
    rows = measure(arguments.model, options, fractions=fractions, num_steps=arguments.steps)
    print(f"\n{arguments.model}\n" + report.format_table(rows, COLUMNS))
    if arguments.json:
        report.write_json(arguments.json, rows)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
