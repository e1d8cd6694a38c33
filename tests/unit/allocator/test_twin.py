"""The C arena against its Python twin: a state machine that hypothesis drives and shrinks, and a long random run.

`python -m tests.oracle` runs a million operations.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.oracle import pair as oracle

sizes = st.one_of(st.sampled_from(oracle.SIZES), st.integers(1, 1 << 20))
streams = st.lists(
    st.tuples(st.one_of(st.sampled_from(oracle.STREAMS), st.integers(0, 200_000)), st.integers(0, 5)),
    min_size=1,
    max_size=6,
).filter(lambda pairs: sum(num_bytes for num_bytes, _ in pairs) > 0)
choice = st.integers(0, 1 << 30)


class ArenaAndTwin(RuleBasedStateMachine):
    """Every rule acts on both; every invariant is checked after every rule."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = oracle.Pair(budget_bytes=1 << 20)

    def teardown(self) -> None:
        self.pair.close()

    @rule(num_bytes=sizes)
    def alloc(self, num_bytes: int) -> None:
        self.pair.alloc(num_bytes)

    @precondition(lambda self: self.pair.blocks)
    @rule(which=choice)
    def free(self, which: int) -> None:
        self.pair.free(which % len(self.pair.blocks))

    @rule(pairs=streams, floor=st.integers(1, 3))
    def reserve(self, pairs: list[tuple[int, int]], floor: int) -> None:
        self.pair.reserve([num_bytes for num_bytes, _ in pairs], [float(cost) for _, cost in pairs], floor)

    @precondition(lambda self: self.pair.stashes)
    @rule(which=choice)
    def unpin(self, which: int) -> None:
        self.pair.unpin(which % len(self.pair.stashes))

    @precondition(lambda self: self.pair.stashes)
    @rule(which=choice)
    def pin(self, which: int) -> None:
        self.pair.pin(which % len(self.pair.stashes))

    @precondition(lambda self: self.pair.stashes)
    @rule(which=choice)
    def release(self, which: int) -> None:
        self.pair.release(which % len(self.pair.stashes))

    @precondition(lambda self: self.pair.stashes)
    @rule(which=choice, importance=st.lists(st.integers(0, 5), min_size=6, max_size=6))
    def set_importance(self, which: int, importance: list[int]) -> None:
        self.pair.set_importance(which % len(self.pair.stashes), [float(cost) for cost in importance])

    @rule(max_count=st.integers(1, 4))
    def evict(self, max_count: int) -> None:
        self.pair.evict(max_count)

    @rule(max_bytes=sizes)
    def trim(self, max_bytes: int) -> None:
        self.pair.trim(max_bytes)

    @rule(num_bytes=st.integers(60_000, 2 << 20))
    def set_budget(self, num_bytes: int) -> None:
        self.pair.set_budget(num_bytes)

    @rule()
    def step(self) -> None:
        self.pair.step()

    @invariant()
    def numbers_agree(self) -> None:
        self.pair.compare()
        self.pair.compare_stashes()


ArenaAndTwin.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestArenaAndTwin = ArenaAndTwin.TestCase


@pytest.mark.parametrize("seed", [1, 2])
def test_many_random_operations_differ_in_nothing(seed: int) -> None:
    oracle.run(15_000, seed)
