"""Ranges: every strategy, dtype and layout gives what a plain loop would, bit for bit, on any number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daf.kernels import available_isas, isa, set_isa, threads
from daf.kernels.reduce.choice import STRATEGIES, Chooser
from daf.kernels.reduce.ranges import value_ranges

REALS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INTEGERS = {
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8,
    "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
SHAPES = [
    (1, 1, 1), (1, 1, 255), (7, 1, 9), (1, 1, 300_000), (3, 7, 49), (2, 5, 20_000), (4, 300, 3),
    (1000, 300, 1), (33, 5, 1), (1, 1000, 1), (300, 3000, 1),
]  # fmt: skip

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40]


@pytest.fixture(params=[1, 2, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def expected(values: torch.Tensor) -> tuple[list[float], list[float]]:
    """Per channel of [outer, channels, inner], by definition."""
    lo, hi = [], []
    for channel in values.transpose(0, 1).flatten(1):
        finite = [value for value in channel.tolist() if math.isfinite(value)]
        lo.append(min(finite, default=math.inf))
        hi.append(max(finite, default=-math.inf))
    return lo, hi


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", [*REALS, *INTEGERS])
@pytest.mark.usefixtures("num_threads")
def test_every_strategy_finds_the_range_of_every_channel(name: str, strategy: str) -> None:
    torch.manual_seed(1)
    for shape in SHAPES:
        values = (torch.randn(shape) * 40).to({**REALS, **INTEGERS}[name])
        flat = values.transpose(0, 1).flatten(1).double()
        ranges = value_ranges(values.data_ptr(), name, shape, strategy=strategy)
        assert list(ranges.lo) == flat.amin(1).tolist(), shape
        assert list(ranges.hi) == flat.amax(1).tolist(), shape


@pytest.mark.parametrize("name", available_isas())
def test_every_instruction_set_finds_the_same(name: str) -> None:
    before = isa()
    values = torch.randn(5, 37, 300)
    try:
        set_isa(name)
        for dtype, torch_dtype in REALS.items():
            narrow = values.to(torch_dtype)
            for shape in ((5, 37, 300), (1, 1, 55_500), (1500, 37, 1)):
                ranges = value_ranges(narrow.data_ptr(), dtype, shape, strategy="hybrid")
                flat = narrow.view(shape).transpose(0, 1).flatten(1).double()
                assert list(ranges.lo) == flat.amin(1).tolist()
                assert list(ranges.hi) == flat.amax(1).tolist()
    finally:
        set_isa(before)


def test_a_thread_can_be_kept_from_using_others(num_threads: int) -> None:
    assert threads.num_threads() == num_threads
    threads.limit_threads(1)
    try:
        assert threads.num_threads() == 1
    finally:
        threads.limit_threads(0)


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    name=st.sampled_from(sorted(REALS)),
    special=st.lists(
        st.tuples(st.integers(0, 2**30), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40]))
    ),
    seed=st.integers(0, 2**30),
)
@settings(max_examples=150, deadline=None)
def test_values_that_are_not_finite_are_passed_over(
    shape: tuple[int, int, int], name: str, special: list[tuple[int, float]], seed: int
) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(REALS[name])
    for index, value in special:
        values.view(-1)[index % values.numel()] = value
    want = expected(values)
    for strategy in STRATEGIES:
        ranges = value_ranges(values.data_ptr(), name, shape, strategy=strategy)
        assert (list(ranges.lo), list(ranges.hi)) == want


@pytest.mark.parametrize("name", REALS)
def test_a_channel_with_nothing_finite_has_the_empty_range(name: str) -> None:
    values = torch.full((2, 3, 100), math.nan, dtype=REALS[name])
    values[:, 1] = 2.0
    for strategy in STRATEGIES:
        ranges = value_ranges(values.data_ptr(), name, (2, 3, 100), strategy=strategy)
        assert ranges.lo == [math.inf, 2.0, math.inf]
        assert ranges.hi == [-math.inf, 2.0, -math.inf]


def test_extreme_integers_are_exact() -> None:
    values = torch.tensor([[-(2**63), 2**63 - 1, 0], [5, 2**62 + 1, -7]])
    for strategy in STRATEGIES:
        ranges = value_ranges(values.data_ptr(), "int64", (2, 3, 1), strategy=strategy)
        assert ranges.lo == [-(2**63), 2**62 + 1, -7]
        assert ranges.hi == [5, 2**63 - 1, 0]


def test_left_to_itself_a_reduction_tries_all_strategies_and_settles() -> None:
    values, chooser = torch.randn(10_000), Chooser()
    used = [value_ranges(values.data_ptr(), "float32", (1, 1, 10_000), chooser=chooser).strategy for _ in range(20)]
    assert used[:9] == [*STRATEGIES] * 3
    (seconds,) = chooser.measured().values()
    assert set(seconds) == set(STRATEGIES)


def test_what_cannot_be_reduced_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 0, 3\) has no elements"):
        value_ranges(0, "float32", (1, 0, 3))
    with pytest.raises(ValueError, match="'complex64' has no range here"):
        value_ranges(0, "complex64", (1, 1, 3))
    with pytest.raises(ValueError, match="'fast' is not a strategy; right would be one of parallel, atomic, hybrid"):
        value_ranges(0, "float32", (1, 1, 3), strategy="fast")
