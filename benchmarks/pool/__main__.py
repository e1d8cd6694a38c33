"""The paged pool under load: latency up to a million stashes, waste inside pages, churn, and a budget that is kept.

    python -m benchmarks.pool [--json FILE] [--stashes 1000000] [--steps 2400]

- latency: one operation at a time, timed in C with the clock's own cost (some 20 ns) included: reserve + release; a
  whole life (reserve, unpin into the index, pin out of it, release); evict (drop a plane, index the rest); a tensor.
- waste: bytes behind the ends of streams, as a share of their pages, at the end of forward passes with mixed widths.
- churn: an hour of training steps at 1.5 s (2400), replayed without the computing: widths and batch size change every
  fifty steps. Resident bytes over the highest live bytes of a step, for the pool alone: in the last step, and the worst
  of all sizes in their last step. `with_tensors`: the same where each activation also has a tensor in the other zone
  for a while; the zones' peaks do not coincide, and what one leaves free the other uses. `left_over_live`: what a
  `trim()` in the middle of the last step cannot give back.
- budget: the same under three quarters of what it wants; resident bytes are sampled every millisecond from a thread.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.native import load
from benchmarks.pool.traces import BATCH_SIZES, TRACES, Saved
from benchmarks.tools.report import format_table, write_json
from daf.allocator.arena import Arena, Stash

Row = dict[str, Any]
OPERATIONS = ("reserve+release", "life", "evict", "alloc+free")
NUM_SAMPLES = 20_000
NUM_PLANES = 3
STEPS_PER_BATCH_SIZE = 50
UNLIMITED_BYTES = 1 << 40


def measure_latency(num_stashes: int) -> list[Row]:
    """Time every operation among `num_stashes` live stashes of three droppable planes."""
    rows = []
    num_samples = min(NUM_SAMPLES, num_stashes)
    ffi, lib = load()
    nanoseconds = ffi.new("double[]", num_samples)
    with Arena(UNLIMITED_BYTES, publish=False, reserve_bytes=1 << 36) as arena:
        raw = ffi.cast("daf_arena_t *", arena.address)
        if lib.daf_bench_fill(raw, num_stashes, 1 + NUM_PLANES, 1):
            raise MemoryError(f"{num_stashes} stashes do not fit")
        for i, operation in enumerate(OPERATIONS):
            if lib.daf_bench_time(raw, i, num_samples, 2, nanoseconds):
                raise RuntimeError(f"{operation} failed")
            times = sorted(ffi.unpack(nanoseconds, num_samples))
            rows.append(
                {
                    "part": "latency",
                    "operation": operation,
                    "stashes": num_stashes,
                    "median_seconds": times[num_samples // 2] * 1e-9,
                    "p99_seconds": times[num_samples * 99 // 100] * 1e-9,
                }
            )
        lib.daf_bench_clear(raw)
    return rows


@dataclass
class Training:
    """Steps without the computing: stashes are reserved forward and released backward, with tensors in between."""

    arena: Arena
    rng: random.Random
    has_tensors: bool = True

    def step(self, activations: list[Saved], bits: list[int], trim: bool = False) -> float:
        """One step; returns resident bytes over the highest live bytes in it, or after a trim over those live then."""
        self.arena.reset_peaks()
        stashes = [self._save(i, saved, width) for i, (saved, width) in enumerate(zip(activations, bits, strict=True))]
        if trim:
            self.arena.trim()
            stats = self.arena.stats()
            return stats["resident_bytes"] / (stats["tensor_bytes"] + stats["plane_bytes"])
        for stash, saved in zip(reversed(stashes), reversed(activations), strict=True):
            stash.pin()
            gradient = self._alloc(saved)
            stash.unpin()
            stash.release()
            self._free(gradient)
        stats = self.arena.stats()
        self.arena.step(1.5)
        return stats["resident_bytes"] / stats["peak_live_bytes"]

    def widths(self, activations: list[Saved]) -> list[int]:
        """Draw the bits of every activation."""
        return [self.rng.randint(1, 4) for _ in activations]

    def _save(self, slot_id: int, saved: Saved, bits: int) -> Stash:
        output = self._alloc(saved)
        streams = saved.stream_bytes(bits)
        importance = [saved.numel * 4.0**-i for i in range(len(streams))]
        floor = len(streams) if saved.kind == "mask" else 1
        stash = self.arena.reserve(self.arena.stash_spec(streams, importance, floor), slot_id, saved.raw_bytes)
        stash.unpin()
        self._free(output)
        return stash

    def _alloc(self, saved: Saved) -> int:
        return self.arena.alloc(saved.raw_bytes) if self.has_tensors else 0

    def _free(self, pointer: int) -> None:
        if pointer:
            self.arena.free(pointer)


def measure_waste(trace: str) -> Row:
    """Return the share of pages behind streams' ends after forward passes; the mixed trace changes its batch size."""
    rng = random.Random(6)
    full = BATCH_SIZES[trace]
    sizes = [full // 4, full // 2, full] if trace == "mixed" else [full]
    with Arena(UNLIMITED_BYTES, publish=False, reserve_bytes=1 << 36) as arena:
        stashes = []
        for saved in (saved for size in sizes for saved in TRACES[trace](size)):
            streams = saved.stream_bytes(rng.randint(1, 4))
            stashes.append(arena.reserve(arena.stash_spec(streams, [0.0] * len(streams))))
        stats = arena.stats()
    return {
        "part": "waste",
        "trace": trace,
        "stashes": len(stashes),
        "plane_bytes": stats["plane_bytes"],
        "waste_ratio": stats["plane_waste_bytes"] / stats["plane_bytes"],
    }


def churn(training: Training, trace: str, num_steps: int) -> tuple[float, float]:
    """Return the last and the worst settled ratio of resident over live bytes; a batch size has 50 steps to settle."""
    worst, ratios = 0.0, [0.0]
    for step in range(0, num_steps, STEPS_PER_BATCH_SIZE):
        batch_size = max(1, int(BATCH_SIZES[trace] * training.rng.uniform(0.25, 1.0)))
        if step + STEPS_PER_BATCH_SIZE >= num_steps:
            batch_size = BATCH_SIZES[trace]
        activations = TRACES[trace](batch_size)
        bits = training.widths(activations)
        ratios = [training.step(activations, bits) for _ in range(STEPS_PER_BATCH_SIZE)]
        worst = max(worst, ratios[-1])
    return ratios[-1], worst


def measure_churn(trace: str, num_steps: int) -> Row:
    """Churn with all the room it wants: the pool alone, then with tensors beside it."""
    with Arena(UNLIMITED_BYTES, publish=False, reserve_bytes=1 << 36) as arena:
        last, worst = churn(Training(arena, random.Random(3), has_tensors=False), trace, num_steps)
    with Arena(UNLIMITED_BYTES, publish=False, reserve_bytes=1 << 36) as arena:
        training = Training(arena, random.Random(3))
        with_tensors, _ = churn(training, trace, num_steps)
        peak = arena.stats()["peak_resident_bytes"]  # of the full batch: peaks start anew with every step
        activations = TRACES[trace](BATCH_SIZES[trace])
        left = training.step(activations, training.widths(activations), trim=True)
    return {
        "part": "churn",
        "trace": trace,
        "steps": num_steps,
        "resident_over_live": last,
        "worst_over_live": worst,
        "with_tensors": with_tensors,
        "left_over_live": left,
        "peak_resident_bytes": peak,
    }


class Sampler(threading.Thread):
    """Looks at the arena every millisecond."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(daemon=True)
        self.arena = arena
        self.num_samples = 0
        self.highest_ratio = 0.0
        self.is_done = threading.Event()

    def run(self) -> None:
        while not self.is_done.wait(0.001):
            stats = self.arena.stats()
            self.num_samples += 1
            self.highest_ratio = max(self.highest_ratio, stats["resident_bytes"] / stats["budget_bytes"])


def measure_budget(trace: str, peak_bytes: int, num_steps: int) -> Row:
    """Churn under three quarters of the peak; the sampler must never see more than the budget."""
    budget_bytes = peak_bytes * 3 // 4
    with Arena(budget_bytes, publish=False, reserve_bytes=1 << 36) as arena:
        sampler = Sampler(arena)
        sampler.start()
        churn(Training(arena, random.Random(5)), trace, num_steps)
        sampler.is_done.set()
        sampler.join()
        stats = arena.stats()
    return {
        "part": "budget",
        "trace": trace,
        "budget_bytes": budget_bytes,
        "samples": sampler.num_samples,
        "highest_of_budget": sampler.highest_ratio,
        "peak_of_budget": stats["peak_resident_bytes"] / budget_bytes,
        "evictions": stats["evictions_total"],
    }


def run(max_stashes: int, num_steps: int) -> list[Row]:
    """Measure every part, smallest first."""
    rows: list[Row] = []
    num_stashes = 1000
    while num_stashes <= max_stashes:
        rows += measure_latency(num_stashes)
        num_stashes *= 10
    rows += [measure_waste(trace) for trace in TRACES]
    for trace in TRACES:
        row = measure_churn(trace, num_steps)
        rows += [row, measure_budget(trace, row["peak_resident_bytes"], max(50, num_steps // 10))]
    return rows


def show(rows: list[Row]) -> None:
    micro = lambda seconds: f"{seconds * 1e6:.2f} us"  # noqa: E731
    share = lambda ratio: f"{ratio:.2%}"  # noqa: E731
    ratio = lambda value: f"{value:.4f}"  # noqa: E731
    mib = lambda num_bytes: f"{num_bytes / 2**20:.0f} MiB"  # noqa: E731
    columns = {
        "latency": {"operation": str, "stashes": str, "median_seconds": micro, "p99_seconds": micro},
        "waste": {"trace": str, "stashes": str, "plane_bytes": mib, "waste_ratio": share},
        "churn": {"trace": str, "steps": str, "peak_resident_bytes": mib, "resident_over_live": ratio,
                  "worst_over_live": ratio, "with_tensors": ratio, "left_over_live": ratio},
        "budget": {"trace": str, "budget_bytes": mib, "samples": str, "highest_of_budget": ratio,
                   "peak_of_budget": ratio, "evictions": str},
    }  # fmt: skip
    for part, how in columns.items():
        print(f"{part}\n{format_table([row for row in rows if row['part'] == part], how)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--stashes", type=int, default=1_000_000, help="most live stashes; default: %(default)s")
    parser.add_argument("--steps", type=int, default=2400, help="of churn; default: %(default)s, an hour at 1.5 s")
    options = parser.parse_args()
    started = time.monotonic()
    rows = run(options.stashes, options.steps)
    show(rows)
    if options.json:
        write_json(options.json, rows, seconds=round(time.monotonic() - started, 1))


if __name__ == "__main__":
    main()
