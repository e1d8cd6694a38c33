"""What the hooks cost a saved tensor, in microseconds: packing and unpacking together, over no hooks at all.

A chain of sines saves one tensor each and computes next to nothing. Forward and backward run with and without the
engine in turn, and the median of the differences is divided by the number of tensors.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import daf
from benchmarks.tools import report

NUM_SAVES = 400
CASES = (
    ("off", 1 << 10),
    ("off", 64 << 10),
    ("2", 1 << 10),  # too small to be coded: passed through
    ("2", 64 << 10),
    ("lossless", 64 << 10),
)
COLUMNS: dict[str, Callable[[float], str]] = {
    "bits": str,
    "tensor_bytes": str,
    "plain_microseconds": lambda value: f"{value:.1f}",
    "daf_microseconds": lambda value: f"{value:.1f}",
    "overhead_microseconds": lambda value: f"{value:.1f}",
}


def run_chain(x: torch.Tensor) -> float:
    """Return the microseconds of a forward and backward, for each saved tensor."""
    began = time.perf_counter()
    y = x
    for _ in range(NUM_SAVES):
        y = y.sin()
    y.sum().backward()
    return (time.perf_counter() - began) / NUM_SAVES * 1e6


def measure(bits: str, tensor_bytes: int, rounds: int) -> report.Row:
    x = torch.randn(tensor_bytes // 4, requires_grad=True)
    pairs = []
    with daf.Session(bits=bits) as session:
        for _ in range(rounds + 2):  # two to warm up
            session.engine.remove()
            plain = run_chain(x)
            session.engine.install()
            pairs.append((plain, run_chain(x)))
    return {
        "bits": bits,
        "tensor_bytes": tensor_bytes,
        "plain_microseconds": statistics.median(plain for plain, _ in pairs[2:]),
        "daf_microseconds": statistics.median(ours for _, ours in pairs[2:]),
        "overhead_microseconds": statistics.median(ours - plain for plain, ours in pairs[2:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    rows = [measure(bits, tensor_bytes, arguments.rounds) for bits, tensor_bytes in CASES]
    print(report.format_table(rows, COLUMNS))
    if arguments.json:
        report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
