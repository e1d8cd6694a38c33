"""Does planning pay? Gradient error of `auto` against one codec, group shape and width for all, at the same bytes.

Two kinds of uniform coding, both with DAF's exact masks and integers. `uniform` codes every saved float; `derived` does
not store what follows from other content, as DAF does, and codes the rest. At the bytes of each width's first codec the
best of those that take no more is compared with `auto` at these bytes. Weights are those that training begins with.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import daf
from benchmarks.peers.method import Method, gradient
from benchmarks.tools import report
from benchmarks.tools.cli import add_model_options, job_of
from benchmarks.train import methods
from benchmarks.train.training import options_of
from benchmarks.workloads import models
from benchmarks.workloads.workload import Batch, Workload
from daf.kernels import Spec
from daf.quant.encode.choice import Chooser, is_relu_like
from daf.quant.encode.encoder import has_columns
from daf.quant.saved.layout import layout_of
from daf.quant.saved.slots import Slot

CODECS = {"meansplit": range(1, 5), "minmax": range(2, 9)}
NUM_WARMUPS = 3  # auto samples in the first two
TOLERANCE = 1.01
COLUMNS = {
    "model": str,
    "method": str,
    "saved_bytes": lambda value: f"{value / 2**20:.2f} MiB",
    "saved_ratio": lambda value: f"{value:.1f}x",
    "grad_rel_error": lambda value: f"{value:.4f}",
    "best_uniform": str,
    "error_ratio": lambda value: f"{value:.2f}",
}


class Uniform(Chooser):
    """One codec and group shape for all floats; runs where a tensor has no columns, support planes where it is sparse
    for sure."""

    def __init__(self, codec: str, bits: int, group: str, *, may_recompute: bool) -> None:
        super().__init__(bits)
        self.codec, self.group, self.may_recompute = codec, group, may_recompute

    def choose(self, tensor: Tensor, slot: Slot) -> Spec:
        spec = super().choose(tensor, slot)
        if not tensor.is_floating_point() or spec.codec == "raw":
            return spec
        group = self.group if has_columns(layout_of(tensor.shape, tensor.stride())) else "run"
        return Spec("support", spec.bits, group) if is_relu_like(tensor, slot) else Spec(self.codec, self.width, group)


class Bench:
    """One model, its exact gradients on a few batches, and what DAF with a given setting makes of them."""

    def __init__(self, workload: Workload, num_batches: int) -> None:
        self.workload = workload
        self.batches = [workload.make_batch(-1 - number) for number in range(num_batches)]
        plain = Method(workload)
        self.plain_bytes = plain.saved_bytes(self.batches[0])
        self._exact = [self._gradient(plain, batch) for batch in self.batches]

    @staticmethod
    def _gradient(method: Method, batch: Batch) -> Tensor:
        return gradient(method, batch, seed=0).double()

    def measure(self, name: str, uniform: Uniform | None = None, **settings: Any) -> report.Row:
        with daf.Session(cpu_allocator=False, **settings) as session:
            if uniform is not None:
                session.engine.encoder.chooser = uniform
                session.engine.may_recompute = uniform.may_recompute
            method = methods.Daf(self.workload, session)
            for _ in range(NUM_WARMUPS):
                self._gradient(method, self.batches[0])
            errors = [
                float((self._gradient(method, batch) - exact).norm() / exact.norm())
                for batch, exact in zip(self.batches, self._exact, strict=True)
            ]
            saved_bytes = method.saved_bytes(self.batches[0])
        print(".", end="", file=sys.stderr, flush=True)
        return {
            "model": self.workload.name,
            "method": name,
            "saved_bytes": saved_bytes,
            "saved_ratio": self.plain_bytes / saved_bytes,
            "grad_rel_error": sum(errors) / len(errors),
        }

    def measure_auto(self, max_bytes: int) -> report.Row:
        """`auto` at no more than `max_bytes`: the ratio is raised until it keeps to them."""
        ratio = self.plain_bytes / max_bytes
        for _ in range(4):
            row = self.measure(f"auto {ratio:.1f}x", bits="auto", ratio=ratio)
            if row["saved_bytes"] <= TOLERANCE * max_bytes:
                break
            ratio *= row["saved_bytes"] / max_bytes
        return row


def uniforms(widths: Sequence[int], *, may_recompute: bool) -> Iterator[tuple[str, Uniform]]:
    for codec, group in itertools.product(CODECS, ("run", "column")):
        for bits in CODECS[codec]:
            if bits in widths:
                kind = "derived" if may_recompute else "uniform"
                yield f"{kind} {codec}-{bits} {group}", Uniform(codec, bits, group, may_recompute=may_recompute)


def compare(bench: Bench, widths: Sequence[int], *, may_recompute: bool) -> Iterator[report.Row]:
    """A row for each uniform way, then one of `auto` for each width."""
    found = [
        bench.measure(name, uniform, bits=uniform.width)
        for name, uniform in uniforms(widths, may_recompute=may_recompute)
    ]
    yield from found
    for width in widths:
        level = next(row["saved_bytes"] for row in found if f"-{width} " in row["method"])
        fitting = [row for row in found if row["saved_bytes"] <= TOLERANCE * level]
        best = min(fitting, key=lambda row: row["grad_rel_error"])
        auto = bench.measure_auto(level)
        error_ratio = auto["grad_rel_error"] / best["grad_rel_error"]
        yield {**auto, "best_uniform": best["method"], "error_ratio": error_ratio}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptive", description=__doc__)
    add_model_options(parser)  # --model takes several names, with commas
    parser.add_argument("--widths", default="2", help="of the uniform codecs, with commas; default: %(default)s")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    widths = [int(width) for width in arguments.widths.split(",")]
    rows = []
    for name in arguments.model.split(","):
        workload = models.recipe(name, options_of(job_of(arguments))).build()
        bench = Bench(workload, arguments.batches)
        found = [row for may_recompute in (False, True) for row in compare(bench, widths, may_recompute=may_recompute)]
        print("\n" + report.format_table(found, COLUMNS), flush=True)
        rows += found
    if arguments.json:
        report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
