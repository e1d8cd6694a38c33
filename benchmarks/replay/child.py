"""One replay of benchmarks.replay: a trace against one allocator, its numbers as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from benchmarks.native.replay import Replay
from benchmarks.tools.process_memory import resident_bytes, resident_peak_bytes, restart_peak
from daf.allocator import Arena
from daf.allocator.trace.recording import read_trace

UNLIMITED_BYTES = 1 << 40


def measure(replay: Replay, arena: Arena | None) -> dict[str, Any]:
    """Replay once and return what benchmarks.replay shows."""
    restart_peak()
    before_bytes = resident_bytes()
    outcome = replay.run(arena)
    reserved_bytes = resident_peak_bytes() - before_bytes
    latencies = outcome.nanoseconds[outcome.nanoseconds > 0] * 1e-9
    median, p99, worst = np.quantile(latencies, [0.5, 0.99, 1.0])
    return {
        "num_requests": len(replay),
        "num_failed": outcome.num_failed,
        "allocated_bytes": outcome.peak_allocated_bytes,
        "reserved_bytes": reserved_bytes,
        "fragmentation_ratio": 1 - outcome.peak_allocated_bytes / reserved_bytes,
        "largest_free_bytes": None if arena is None else arena.stats()["largest_free_bytes"],
        "median_seconds": float(median),
        "p99_seconds": float(p99),
        "worst_seconds": float(worst),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("--daf", action="store_true")
    options = parser.parse_args()
    replay = Replay(read_trace(options.trace))
    arena = Arena(UNLIMITED_BYTES, publish=False) if options.daf else None
    print(json.dumps(measure(replay, arena)))


if __name__ == "__main__":
    main()
