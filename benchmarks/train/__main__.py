"""Memory, speed and gradient error of training: plain, peers and DAF, interleaved.

Every method trains in a process of its own, so peaks do not mix; the processes take turns step by step, so what else
the machine does hits all alike. Read ratios, not seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.tools import report
from benchmarks.tools.cli import add_model_options, job_of
from benchmarks.train.worker import Job, Worker, WorkerError

COLUMNS = {
    "method": str,
    "saved_bytes": lambda value: f"{value / 2**20:.1f} MiB",
    "saved_ratio": lambda value: f"{value:.1f}x",
    "peak_bytes": lambda value: f"{value / 2**20:.0f} MiB",
    "peak_ratio": lambda value: f"{value:.2f}",
    "step_seconds": lambda value: f"{value:.3f}",
    "step_ratio": lambda value: f"{value:.2f}",
    "step_spread": lambda value: f"±{value:.2f}",
    "step_cpu_ratio": lambda value: f"{value:.2f}",
    "grad_rel_error": lambda value: f"{value:.4f}",
    "grad_cosine": lambda value: f"{value:.4f}",
}


@dataclass(slots=True)
class Measured:
    """What one method gave, over all repeats."""

    job: Job
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # each step against plain's in the same round
    cpu_ratios: list[float] = field(default_factory=list)  # the same in processor time, which a busy machine bends less
    peaks_bytes: list[int] = field(default_factory=list)
    saved_bytes: int = 0
    fidelity: dict[str, float] = field(default_factory=dict)
    error: str = ""

    def row(self, plain: Measured) -> report.Row:
        if self.error:
            return {"model": self.job.model, "method": self.job.method, "error": self.error}
        peak_bytes = int(statistics.median(self.peaks_bytes))
        return {
            "model": self.job.model,
            "method": self.job.method,
            "saved_bytes": self.saved_bytes,
            "saved_ratio": plain.saved_bytes / max(self.saved_bytes, 1),
            "peak_bytes": peak_bytes,
            "peak_ratio": peak_bytes / statistics.median(plain.peaks_bytes),
            "step_seconds": statistics.median(self.seconds),
            "step_ratio": statistics.median(self.ratios),
            "step_spread": _half_spread(self.ratios),
            "step_cpu_ratio": statistics.median(self.cpu_ratios),
            **self.fidelity,
        }


def _half_spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


def measure(
    job: Job, names: Sequence[str], *, num_steps: int, num_warmups: int, repeats: int, alive: int, num_fidelity: int
) -> list[report.Row]:
    """Return a row for each method. At most `alive` of them, and plain, are in memory at once."""
    plain = Measured(replace(job, method="plain"))
    others = [Measured(replace(job, method=name)) for name in names if name != "plain"]
    for repeat in range(repeats):
        for group in _chunks(others, alive) or [[]]:
            _run_group(
                plain, group, num_steps=num_steps, num_warmups=num_warmups, num_fidelity=0 if repeat else num_fidelity
            )
    return [one.row(plain) for one in (plain, *others)]


def _chunks(items: list[Measured], size: int) -> list[list[Measured]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _run_group(plain: Measured, others: list[Measured], *, num_steps: int, num_warmups: int, num_fidelity: int) -> None:
    with contextlib.ExitStack() as stack:
        lanes = list(_start(stack, plain, others))
        for round_number in range(num_warmups + num_steps):
            _round(lanes, is_timed=round_number >= num_warmups)
        for worker, measured in lanes:
            with _errors_of(measured):
                measured.peaks_bytes.append(worker.ask("peak"))
                measured.saved_bytes = worker.ask("saved")
                if num_fidelity:
                    measured.fidelity = worker.ask("fidelity", num_batches=num_fidelity)
            print(".", end="", file=sys.stderr, flush=True)


def _start(stack: contextlib.ExitStack, plain: Measured, others: list[Measured]) -> Iterator[tuple[Worker, Measured]]:
    worker = stack.enter_context(Worker(plain.job))
    plain_saved_bytes = worker.ask("saved")
    yield worker, plain
    for measured in others:
        measured.job = replace(measured.job, plain_saved_bytes=plain_saved_bytes)
        with _errors_of(measured):
            yield stack.enter_context(Worker(measured.job)), measured


def _round(lanes: list[tuple[Worker, Measured]], *, is_timed: bool) -> None:
    plain: dict[str, float] = {}
    for worker, measured in lanes:
        if measured.error:
            continue
        with _errors_of(measured):
            step = worker.ask("step")
            plain = plain or step
            if is_timed:
                measured.seconds.append(step["seconds"])
                measured.ratios.append(step["seconds"] / plain["seconds"])
                measured.cpu_ratios.append(step["cpu_seconds"] / plain["cpu_seconds"])


@contextlib.contextmanager
def _errors_of(measured: Measured) -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        measured.error = str(error)


def main() -> None:
    from benchmarks.train.methods import STANDARD

    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--methods", default=",".join(STANDARD), help="comma separated; default: %(default)s")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each method and repeat")
    parser.add_argument("--warmups", type=int, default=8, help="DAF plans its bits in these")
    parser.add_argument("--repeats", type=int, default=1, help="new processes each time")
    parser.add_argument("--alive", type=int, default=6, help="methods in memory at once, beside plain")
    parser.add_argument("--fidelity", type=int, default=3, help="batches to compare gradients on; 0: do not")
    parser.add_argument(
        "--compile", action="store_true", help="compile model and loss by torch.compile, in all methods"
    )
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    rows = measure(
        replace(job_of(arguments), is_compiled=arguments.compile),
        arguments.methods.split(","),
        num_steps=arguments.steps,
        num_warmups=arguments.warmups,
        repeats=arguments.repeats,
        alive=arguments.alive,
        num_fidelity=arguments.fidelity,
    )
    print(f"\n{arguments.model}\n" + report.format_table(rows, COLUMNS))
    for row in rows:
        if "error" in row:
            print(row["error"])
    if arguments.json:
        report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
