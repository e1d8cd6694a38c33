"""Measuring the strategies of the range reduction against each other, for `daf tune` and the benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from daf.kernels.reduce.choice import STRATEGIES
from daf.kernels.reduce.ranges import value_ranges

Shape = tuple[int, int, int]

LEAST_SECONDS = 0.002  # a sample repeats small reductions until it takes this long, so that the clock does not matter
MAX_REPEATS = 64


def shapes(least_log2: int = 12, most_log2: int = 24, step: int = 2) -> list[Shape]:
    """Return whole tensors, maps of 64 channels and matrices of 1024 columns, each over the sizes 2^least to 2^most."""
    sizes = [1 << log2 for log2 in range(least_log2, most_log2 + 1, step)]
    whole = [(1, 1, size) for size in sizes]
    maps = [(max(1, size >> 14), 64, min(256, size >> 6)) for size in sizes]
    matrices = [(size >> 10, 1024, 1) for size in sizes]
    return [*whole, *maps, *matrices]


def measure(src_ptr: int, dtype: str, shape: Shape, *, rounds: int = 7) -> dict[str, list[float]]:
    """Return `rounds` times of each strategy in seconds, taken in turn so that a busy machine hits them alike."""

    def reduce(strategy: str) -> Callable[[], object]:
        return lambda: value_ranges(src_ptr, dtype, shape, strategy=strategy)

    return interleaved({strategy: reduce(strategy) for strategy in STRATEGIES}, rounds=rounds)


def interleaved(calls: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call, `rounds` times in turn, after one warm-up each."""
    repeats = max(1, min(MAX_REPEATS, int(LEAST_SECONDS / min(_time(call, 1) for call in calls.values()))))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(_time(call, repeats))
    return seconds


def least(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return each call's shortest time: what it takes when nothing else runs."""
    return {name: min(times) for name, times in seconds.items()}


def spread(times: list[float]) -> float:
    """Return how far the median lies above the shortest: 1.0 on a quiet machine."""
    return statistics.median(times) / min(times)


def _time(call: Callable[[], object], repeats: int) -> float:
    call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
