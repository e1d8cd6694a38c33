"""Replay recorded allocations against DAF and the usual allocators.

    python -m benchmarks.replay [--json FILE] [FILE...]

A FILE is a trace of `daf run --trace`, a log of RMM (CSV) or a PyTorch memory snapshot (pickle); without one, the three
traces that come with the benchmarks. Each allocator replays in a process of its own, in turn, several rounds. Stashes
are pages of DAF's plane zone there, and plain blocks for the others. Every block is touched, outside the timed part.

| column | meaning |
|---|---|
| allocated | highest sum of live requests: what no allocator can go below |
| reserved | highest resident size of the process, less that before the replay |
| fragmentation | 1 - allocated / reserved |
| largest free | the largest block that DAF could give at the end without asking the system |
"""

from __future__ import annotations

import argparse
import ctypes.util
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

from benchmarks.allocator.__main__ import PEERS, available
from benchmarks.replay import child
from benchmarks.tools.report import write_json
from daf.allocator.trace.recording import read_trace
from daf.sizes import format_bytes

TRACES = pathlib.Path(__file__).parents[1] / "traces"
NUM_ROUNDS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    trace: str
    allocator: str
    num_requests: int
    num_failed: int
    allocated_bytes: int
    reserved_bytes: int
    fragmentation_ratio: float
    largest_free_bytes: int | None  # DAF only: the others do not tell
    median_seconds: float
    p99_seconds: float
    worst_seconds: float


def run(path: pathlib.Path, allocator: str) -> Row:
    """Replay the trace at `path` once, in a process of its own."""
    env = dict(os.environ)
    if library := PEERS.get(allocator):
        env["LD_PRELOAD"] = ctypes.util.find_library(library) or ""
    command = [sys.executable, "-m", child.__name__, str(path)] + ["--daf"] * (allocator == "daf")
    result = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, check=True)
    return Row(path.stem, allocator, **json.loads(result.stdout))


def middle(rows: list[Row]) -> Row:
    """Return the round with the median latency: its numbers belong together."""
    return sorted(rows, key=lambda row: row.median_seconds)[len(rows) // 2]


def show(rows: list[Row]) -> None:
    first = rows[0]
    print(f"{first.trace}: {first.num_requests} requests, {format_bytes(first.allocated_bytes)} at the peak")
    columns = f"{'reserved':>11}{'fragment.':>11}{'largest free':>14}{'p50 ns':>9}{'p99 ns':>9}{'worst us':>10}"
    print(f"  {'allocator':<10}{columns}")
    for row in rows:
        largest = "-" if row.largest_free_bytes is None else format_bytes(row.largest_free_bytes)
        print(
            f"  {row.allocator:<10}{format_bytes(row.reserved_bytes):>11}{row.fragmentation_ratio:>11.3f}{largest:>14}"
            f"{row.median_seconds * 1e9:>9.0f}{row.p99_seconds * 1e9:>9.0f}{row.worst_seconds * 1e6:>10.0f}"
            + (f"   {row.num_failed} failed" if row.num_failed else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows: list[Row] = []
    for path in options.files:
        try:
            read_trace(path)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    for path in options.files or sorted(TRACES.glob("*.csv")):
        rounds = [[run(path, allocator) for allocator in available()] for _ in range(NUM_ROUNDS)]
        of_trace = [middle(list(of_allocator)) for of_allocator in zip(*rounds, strict=True)]
        show(of_trace)
        rows += of_trace
    if options.json:
        write_json(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
