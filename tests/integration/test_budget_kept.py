"""A real training, and the recorded traces, under a budget: it is kept at every moment."""

from __future__ import annotations

import math
import threading
import time

import pytest

from benchmarks.budget import __main__ as budget
from benchmarks.native.replay import Replay
from benchmarks.replay.__main__ import TRACES
from daf.allocator import Arena
from daf.allocator.trace.recording import read_trace
from tests.tools import require_tool

SCALE = 0.1  # smaller, and the fixed costs of a few small blocks decide
MIB = 1 << 20


@pytest.fixture(scope="module")
def need_bytes() -> int:
    require_tool("c++", "g++", "clang++")
    return budget.run("plain", 1 << 33, "off", SCALE, num_steps=2).peak_held_bytes


def test_a_training_at_half_of_its_need_drops_planes_and_goes_on(need_bytes: int) -> None:
    row = budget.run("half", need_bytes // 2, 8, SCALE)
    assert row.error == ""
    assert row.num_evictions > 0
    assert math.isfinite(row.loss)
    assert row.num_samples > 0
    assert row.sampled_peak_bytes <= row.budget_bytes


def test_at_an_impossible_budget_the_error_names_everything_and_a_small_step_then_works() -> None:
    require_tool("c++", "g++", "clang++")
    row = budget.run("impossible", budget.impossible_bytes(SCALE), 8, SCALE)
    assert "asked for" in row.error
    assert "would have" in row.error
    assert "tensors:" in row.error
    assert "stashes:" in row.error
    assert math.isfinite(row.loss)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.csv")), ids=lambda path: path.stem)
def test_replayed_traces_keep_the_budget_whenever_one_looks(path: object) -> None:
    replay = Replay(read_trace(path))  # type: ignore[arg-type]
    with Arena(1 << 36, publish=False) as arena:
        replay.run(arena)
        least = int(arena.stats()["peak_held_bytes"])
    budget_bytes = least * 102 // 100
    seen: list[int] = []
    with Arena(budget_bytes, publish=False) as arena:
        worker = threading.Thread(target=replay.run, args=(arena,))
        worker.start()
        while worker.is_alive():
            seen.append(int(arena.stats()["resident_bytes"]))
            time.sleep(0.001)
        assert arena.is_valid()
    assert max(seen) <= budget_bytes
