"""The largest batch that trains under a limit on the process's memory: plain, checkpoint, DAF.

A batch counts when a few steps end with a finite loss inside the limit, which the kernel enforces where it lets us.
DAF is given as budget what is left of the limit after the imports, less a reserve for what no allocator sees.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import replace

from benchmarks.tools import report
from benchmarks.tools.cli import add_model_options, job_of
from benchmarks.tools.memory_limit import make_limit
from benchmarks.train.worker import Job, Worker, WorkerError
from daf.sizes import format_bytes, parse_bytes

COLUMNS = {
    "method": str,
    "max_batch": str,
    "ratio": lambda value: f"{value:.1f}x",
    "seconds_per_sample": lambda value: f"{value:.4f}",
    "limit": str,
}
GROWTH = 1.3
DOUBT = 0.05  # a search ends when this share of the batch is in doubt


class Search:
    """Finds the largest batch of one method: two small ones say where to look, then halves of the doubt until a tenth
    is left of it."""

    def __init__(self, job: Job, *, num_steps: int, granule: int) -> None:
        self._job = job
        self._num_steps = num_steps
        self._granule = granule
        self.kind = ""
        self.seconds: dict[int, float] = {}  # of a step, by batch that fitted

    def run(self) -> int:
        fits, too_large = 0, 0
        batch = self._round(self._first_guess())
        while not too_large or too_large - fits > max(self._granule, DOUBT * fits):
            if self._fits(batch):
                fits = batch
            else:
                too_large = batch
            if fits == 0 and too_large <= self._granule:
                return 0
            batch = self._round((fits + too_large) / 2 if too_large else max(fits * GROWTH, fits + self._granule))
        return fits

    def _round(self, batch: float) -> int:
        return max(self._granule, math.floor(batch / self._granule) * self._granule)

    def _first_guess(self) -> float:
        small, large = 2 * self._granule, 6 * self._granule
        try:
            peaks_bytes = {batch: self._try(batch, lambda worker: worker.ask("peak")) for batch in (small, large)}
        except WorkerError as error:
            print(f"  {self._job.method} {large}: {error}", file=sys.stderr, flush=True)
            return small
        per_sample = max((peaks_bytes[large] - peaks_bytes[small]) / (large - small), 1)
        left_bytes = self._job.limit_bytes * 0.85 - peaks_bytes[large]
        return large + left_bytes / per_sample

    def _fits(self, batch: int) -> bool:
        try:
            self._try(batch, lambda _: None)
        except WorkerError as error:
            print(f"  {self._job.method} {batch}: {error}", file=sys.stderr, flush=True)
            return False
        print(f"  {self._job.method} {batch}: fits, {self.seconds[batch]:.2f} s", file=sys.stderr, flush=True)
        return True

    def _try(self, batch: int, ask: Callable[[Worker], int | None]) -> int:
        limit = make_limit(self._job.limit_bytes)
        self.kind = limit.kind
        try:
            with Worker(replace(self._job, batch_size=batch), limit) as worker:
                steps = [worker.ask("step") for _ in range(self._num_steps)]
                if not all(math.isfinite(step["loss"]) for step in steps):
                    raise WorkerError("the loss is not finite")
                self.seconds[batch] = min(step["seconds"] for step in steps)
                return ask(worker) or 0
        finally:
            limit.close()


def measure(job: Job, methods: list[str], *, num_steps: int, granule: int) -> list[report.Row]:
    """Return a row for each method; ratios are against the first."""
    rows: list[report.Row] = []
    for method in methods:
        search = Search(replace(job, method=method), num_steps=num_steps, granule=granule)
        max_batch = search.run()
        rows.append(
            {
                "model": job.model,
                "method": method,
                "limit_bytes": job.limit_bytes,
                "limit": f"{format_bytes(job.limit_bytes)}, {search.kind}",
                "max_batch": max_batch,
                "ratio": max_batch / max(rows[0]["max_batch"], 1) if rows else 1.0,
                "seconds_per_sample": search.seconds[max_batch] / max_batch if max_batch else None,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maxbatch", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--limit", type=parse_bytes, default=parse_bytes("2GiB"), help="such as 2GiB (the default)")
    parser.add_argument("--methods", default="plain,checkpoint,daf-auto", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=3, help="steps that must succeed")
    parser.add_argument("--granule", type=int, default=8, help="batches are multiples of this")
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    job = replace(job_of(arguments), limit_bytes=arguments.limit)
    rows = measure(job, arguments.methods.split(","), num_steps=arguments.steps, granule=arguments.granule)
    print(f"\n{arguments.model}\n" + report.format_table(rows, COLUMNS))
    if arguments.json:
        report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
