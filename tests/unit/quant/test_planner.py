"""The planner against an exhaustive search, and its goals."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daf.kernels import Spec
from daf.quant.planner import Goal, Option, hull, plan


def menu(*points: tuple[int, float]) -> list[Option]:
    return [Option(Spec("meansplit", min(4, 1 + i)), num_bytes, error) for i, (num_bytes, error) in enumerate(points)]


MENUS = {0: menu((10, 8.0), (20, 2.0), (30, 0.5)), 1: menu((100, 4.0), (200, 1.0)), 2: menu((10, 0.1), (20, 0.05))}


def test_bytes_go_where_they_lower_the_error_most() -> None:
    outcome = plan(MENUS, Goal(max_bytes=140))
    assert [outcome.chosen[i].stored_bytes for i in range(3)] == [30, 100, 10]
    assert outcome.stored_bytes == 140
    assert outcome.is_met


def test_planning_stops_once_the_error_is_low_enough() -> None:
    outcome = plan(MENUS, Goal(max_error=6.5))
    assert outcome.chosen[0].stored_bytes == 20
    assert outcome.error <= 6.5


def test_a_budget_below_the_cheapest_options_is_not_met_and_says_so() -> None:
    outcome = plan(MENUS, Goal(max_bytes=50))
    assert not outcome.is_met
    assert outcome.stored_bytes == 120


def test_the_hull_drops_options_that_no_budget_would_choose() -> None:
    options = hull(menu((10, 8.0), (20, 7.9), (25, 9.0), (30, 1.0)))
    assert [option.stored_bytes for option in options] == [10, 30]


points = st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 10.0)), min_size=1, max_size=4)


@given(st.lists(points, min_size=1, max_size=4), st.integers(4, 120))
def test_the_plan_is_within_one_step_of_the_best_there_is(raw: list[list[tuple[int, float]]], budget: int) -> None:
    menus = {i: menu(*one) for i, one in enumerate(raw)}
    outcome = plan(menus, Goal(max_bytes=budget))
    fits = [
        sum(option.error for option in options)
        for options in itertools.product(*menus.values())
        if sum(option.stored_bytes for option in options) <= budget
    ]
    if outcome.is_met and fits:
        largest_step = max(max(o.error for o in m) - min(o.error for o in m) for m in menus.values())
        assert outcome.error <= min(fits) + largest_step + 1e-9
        assert outcome.stored_bytes <= budget


@pytest.mark.parametrize("budget", [120, 130, 240, 1000])
def test_a_plan_never_exceeds_its_budget(budget: int) -> None:
    assert plan(MENUS, Goal(max_bytes=budget)).stored_bytes <= budget
