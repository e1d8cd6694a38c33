"""How well importance ranks slots: the error each is expected to cause against the one it does cause.

Every slot that is coded gets the same width. One forward keeps exact contents beside the coded ones; then the backward
runs once over exact contents alone, and once for each slot, with that slot's coded content and all others exact.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import daf
from benchmarks.tools import report
from benchmarks.tools.cli import add_model_options, job_of
from benchmarks.train.training import options_of
from benchmarks.train.worker import Job
from benchmarks.workloads import models
from daf.kernels import Spec
from daf.quant.saved.slots import Slot

NUM_WARMUPS = 3  # auto samples in the first two
COLUMNS = {
    "model": str,
    "slots": str,
    "rank_correlation": lambda value: f"{value:.2f}",
    "expected": lambda value: f"{value:.3f}",
    "true": lambda value: f"{value:.3f}",
}


class Bench:
    """A graph that is kept, and the gradients it gives with the coded content of some slots."""

    def __init__(self, session: Any, job: Job, bits: int) -> None:
        self._engine = session.engine
        self._workload = models.recipe(job.model, options_of(job)).build()
        for number in range(NUM_WARMUPS):
            self._forward(number).backward()  # type: ignore[no-untyped-call]
        self.slots = {slot: error for slot in self._engine.slots() if (error := settle(slot, bits)) is not None}
        self._engine.monitor.every = 1
        self._loss = self._forward(NUM_WARMUPS)
        self._coded: Slot | None = None
        self._exact_of = self._engine.monitor.exact
        self._engine.monitor.exact = self._exact

    def _forward(self, number: int) -> Tensor:
        torch.manual_seed(number)  # dropout
        return self._workload.loss(self._workload.model, self._workload.make_batch(number))

    def _exact(self, stored: Any, layout: Any) -> Tensor | None:
        return None if self._coded in stored.slots() else self._exact_of(stored, layout)

    def gradient(self, coded: Slot | None) -> Tensor:
        """With the coded content of one slot, or of none."""
        self._coded = coded
        monitor, parameters = self._engine.monitor, list(self._workload.trainable())
        self._engine.context.decoded.has_room = False  # what was worked out from one slot's content is no other's
        monitor.hands_out_exact = True
        try:
            grads = torch.autograd.grad(self._loss, parameters, retain_graph=True, allow_unused=True)
        finally:
            monitor.hands_out_exact = False
        return torch.cat([grad.flatten() for grad in grads if grad is not None]).double()

    def expected(self, slot: Slot) -> float:
        """Squared error over the gradient's square."""
        return float(self.slots[slot] * slot.facts.importance / self._engine.policy.probe.gradient_energy)


def settle(slot: Slot, bits: int) -> float | None:
    """Plan the codec that errs least at this width; return its relative error. None: the slot is exact, or follows."""
    curves = [curve for curve in slot.facts.curves if curve.min_bits <= bits < len(curve.errors)]
    if slot.plan.is_recomputed or not curves or not slot.facts.importance:
        return None
    best = min(curves, key=lambda curve: curve.errors[bits])
    slot.plan.planned = Spec(best.codec, bits, best.group)
    slot.plan.by_size.clear()
    return best.errors[bits]


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [[sorted(values).index(value) for value in values] for values in (left, right)]
    return statistics.correlation(*ranks)


def measure(job: Job, bits: int) -> report.Row:
    with daf.Session(bits="auto", cpu_allocator=False) as session:
        bench = Bench(session, job, bits)
        exact = bench.gradient(None)
        expected, true = [], []
        for slot in bench.slots:
            error = (bench.gradient(slot) - exact).square().sum() / exact.square().sum()
            if error:  # else nobody reads this content: its shape or its mask was all that was wanted
                expected.append(bench.expected(slot))
                true.append(float(error))
            print(".", end="", file=sys.stderr, flush=True)
    return {
        "model": job.model,
        "slots": len(true),
        "rank_correlation": rank_correlation(expected, true),
        "expected": sum(expected),
        "true": sum(true),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--json", help="write the row to this file")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    row = measure(job_of(arguments), arguments.bits)
    print("\n" + report.format_table([row], COLUMNS))
    if arguments.json:
        report.write_json(arguments.json, [row])


if __name__ == "__main__":
    main()
