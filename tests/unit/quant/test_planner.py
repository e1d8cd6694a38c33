"""The planner against an exhaustive search, and its goals."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daf.kernels import Spec
from daf.quant.plan.menu import Kind, Menus, Option, noise_of, total
from daf.quant.plan.planner import ERROR_CAP, GOOD_ERROR, LOST_ERROR, Goal, plan


def menu(*points: tuple[int, float], seconds: float = 0.0) -> list[Option]:
    return [
        Option(Kind.COMPRESS, num_bytes, error, seconds, Spec("minmax", min(8, 1 + i)), noise=error)
        for i, (num_bytes, error) in enumerate(points)
    ]


def keep(num_bytes: int) -> Option:
    return Option(Kind.KEEP, num_bytes, 0.0)


def recompute(*sources: int, seconds: float = 0.0, passes: float = 1.0) -> Option:
    return Option(Kind.RECOMPUTE, 0, 0.0, seconds, needs=sources, passes=passes)


MENUS = {0: menu((10, 8.0), (20, 2.0), (30, 0.5)), 1: menu((100, 4.0), (200, 1.0)), 2: menu((10, 0.1), (20, 0.05))}


def kinds(menus: Menus, goal: Goal) -> list[Kind]:
    chosen = plan(menus, goal).chosen
    return [chosen[i].kind for i in sorted(chosen)]


def test_bytes_go_where_they_lower_the_error_most() -> None:
    found = plan(MENUS, Goal(max_bytes=140))
    assert [found.chosen[i].stored_bytes for i in range(3)] == [30, 100, 10]
    assert found.stored_bytes == 140
    assert found.is_met


def test_everything_is_kept_where_it_fits_and_to_the_byte() -> None:
    menus = {i: [*menu((1, 0.5), (2, 1e-9)), keep(10), recompute(seconds=1e-9)] for i in range(3)}
    assert kinds(menus, Goal(max_bytes=30)) == [Kind.KEEP] * 3
    assert Kind.COMPRESS in kinds(menus, Goal(max_bytes=29))


def test_a_target_for_the_error_takes_the_fewest_bytes_that_reach_it() -> None:
    found = plan(MENUS, Goal(max_error=6.5))
    assert found.chosen[0].stored_bytes == 20
    assert found.error <= 6.5
    assert found.is_met


def test_a_budget_below_the_cheapest_options_is_not_met_and_says_so() -> None:
    found = plan(MENUS, Goal(max_bytes=50))
    assert not found.is_met
    assert found.stored_bytes == 120


@pytest.mark.parametrize("budget", [120, 130, 240, 1000])
def test_a_plan_never_exceeds_its_budget(budget: int) -> None:
    assert plan(MENUS, Goal(max_bytes=budget)).stored_bytes <= budget


def test_a_wish_for_fewer_bytes_stops_where_the_gradient_would_be_lost() -> None:
    menus = {0: [*menu((1, 0.9), (2, 0.1), (4, 0.01)), keep(32)], 1: [*menu((1, 0.01)), keep(32)]}
    found = plan(menus, Goal(wish_bytes=2))
    assert found.chosen[0].stored_bytes == 2
    assert found.error <= ERROR_CAP
    assert not found.is_met


def test_a_budget_is_kept_whatever_it_costs() -> None:
    menus = {0: [*menu((1, 0.9), (2, 0.2), (4, 0.01)), keep(32)]}
    found = plan(menus, Goal(max_bytes=1, wish_bytes=1))
    assert found.stored_bytes == 1


def test_a_wish_that_no_option_is_small_enough_for_does_not_starve_anyone() -> None:
    menus = {0: [*menu((10, 0.6), (20, 0.1), (30, 1e-3)), keep(80)]}
    found = plan(menus, Goal(wish_bytes=5))
    assert found.chosen[0].stored_bytes == 20


def test_of_plans_that_are_as_good_as_exact_the_fastest_is_taken() -> None:
    slow = Option(Kind.COMPRESS, 10, 0.0, seconds=1.0, spec=Spec("minmax", 8))
    quick = Option(Kind.COMPRESS, 10, GOOD_ERROR / 4, seconds=0.1, spec=Spec("minmax", 6))
    found = plan({i: [slow, quick, keep(100)] for i in range(3)}, Goal(max_bytes=130))
    assert found.error <= GOOD_ERROR
    assert sorted(option.kind for option in found.chosen.values()) == [Kind.COMPRESS, Kind.COMPRESS, Kind.KEEP]
    assert found.seconds == pytest.approx(0.2)


def test_where_plans_differ_in_error_the_smaller_error_is_worth_its_time() -> None:
    slow = Option(Kind.COMPRESS, 10, 0.01, seconds=1.0, spec=Spec("minmax", 8))
    quick = Option(Kind.COMPRESS, 10, 0.2, seconds=0.1, spec=Spec("minmax", 6))
    assert plan({0: [slow, quick]}, Goal()).chosen[0] is slow
    assert plan({0: [slow, quick]}, Goal(max_seconds=0.5)).chosen[0] is slow  # for so much error no time is worth it
    near = Option(Kind.COMPRESS, 10, 0.03, seconds=0.1, spec=Spec("minmax", 7))
    assert plan({0: [slow, near]}, Goal(max_seconds=0.5)).chosen[0] is near


def test_seconds_that_no_plan_can_save_do_not_break_the_budget() -> None:
    slow = Option(Kind.RECOMPUTE, 0, 0.01, seconds=1.0)
    assert plan({0: [slow, keep(100)]}, Goal(max_bytes=10, max_seconds=0.5)).chosen[0] is slow


def test_what_is_recomputed_from_noise_is_noise() -> None:
    choice = {0: menu((1, 0.25))[0], 1: recompute(0, passes=2.0), 2: recompute(1, passes=4.0)}
    assert noise_of(choice, 2) == 0.25
    assert total(choice).error == pytest.approx(0.25 + 2.0 * 0.25 + 4.0 * 0.25)


def test_a_source_gets_bits_for_what_is_recomputed_from_it() -> None:
    source = [*menu((1, 0.1), (4, 0.01))]
    other = [*menu((1, 0.15), (4, 0.01))]
    many: Menus = {0: source, 1: other, **{i: [recompute(0)] for i in range(2, 8)}}
    assert plan({0: source, 1: other}, Goal(max_bytes=5)).chosen[1].stored_bytes == 4
    assert plan(many, Goal(max_bytes=5)).chosen[0].stored_bytes == 4


def test_a_spilled_slot_is_exact_and_only_slow() -> None:
    spill = Option(Kind.SPILL, 0, 0.0, seconds=2.0)
    menus = {0: [*menu((4, 0.3)), keep(32), spill], 1: [*menu((4, GOOD_ERROR / 2), seconds=0.1), keep(32), spill]}
    assert kinds(menus, Goal(max_bytes=36)) == [Kind.KEEP, Kind.COMPRESS]
    assert kinds(menus, Goal(max_bytes=4)) == [Kind.SPILL, Kind.COMPRESS]


points = st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 10.0)), min_size=1, max_size=4)


@given(st.lists(points, min_size=1, max_size=4), st.integers(4, 120))
def test_the_plan_is_within_one_step_of_the_best_there_is(raw: list[list[tuple[int, float]]], budget: int) -> None:
    menus = {i: menu(*one) for i, one in enumerate(raw)}
    found = plan(menus, Goal(max_bytes=budget))
    fits = [
        sum(option.error for option in options)
        for options in itertools.product(*menus.values())
        if sum(option.stored_bytes for option in options) <= budget
    ]
    assert found.is_met == bool(fits)
    if fits:
        largest_step = max(max(o.error for o in m) - min(o.error for o in m) for m in menus.values())
        assert found.error <= min(fits) + largest_step + 1e-9
        assert found.stored_bytes <= budget


timed = st.lists(
    st.builds(
        Option,
        st.just(Kind.COMPRESS),
        st.integers(1, 20),
        st.floats(0.0, 2 * GOOD_ERROR),
        st.floats(0.01, 1.0),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(st.lists(timed, min_size=1, max_size=3), st.integers(3, 60))
def test_the_fastest_good_plan_is_within_two_steps_of_the_fastest_there_is(
    raw: list[list[Option]], budget: int
) -> None:
    menus = {i: [*one, keep(20)] for i, one in enumerate(raw)}
    found = plan(menus, Goal(max_bytes=budget))
    good = [
        total(dict(enumerate(options)))
        for options in itertools.product(*menus.values())
        if sum(option.stored_bytes for option in options) <= budget
    ]
    fastest = min((sums.seconds for sums in good if sums.error <= GOOD_ERROR), default=math.inf)
    if found.is_met and found.error <= GOOD_ERROR:
        longest = max(option.seconds for one in menus.values() for option in one)
        assert found.seconds <= fastest + 2 * longest + 1e-9


@st.composite
def graphs(draw: st.DrawFn) -> Menus:
    """Slots of which later ones may be recomputed from earlier ones."""
    menus: dict[int, list[Option]] = {}
    for slot_id in range(draw(st.integers(1, 4))):
        options = menu(*draw(points))
        options.append(keep(50))
        if slot_id:
            sources = draw(st.sets(st.integers(0, slot_id - 1), min_size=1, max_size=2))
            options.append(recompute(*sorted(sources), seconds=0.1, passes=draw(st.floats(0.0, 5.0))))
        menus[slot_id] = options
    return menus


@settings(max_examples=60)
@given(graphs(), st.integers(4, 240))
def test_what_can_be_recomputed_never_makes_a_plan_worse_or_larger(menus: Menus, budget: int) -> None:
    found = plan(menus, Goal(max_bytes=budget))
    stored = {i: [option for option in one if option.kind is not Kind.RECOMPUTE] for i, one in menus.items()}
    without = plan(stored, Goal(max_bytes=budget))
    assert found.is_met or not without.is_met
    if without.is_met:
        assert found.stored_bytes <= budget
        assert found.error <= without.error + max(o.error for m in stored.values() for o in m) + 1e-9


def test_a_plan_is_left_only_for_a_gain() -> None:
    menus = {i: [*menu((8, 0.100), (9, 0.099)), keep(64)] for i in range(10)}
    first = plan(menus, Goal(max_bytes=80))
    second = plan(menus, Goal(max_bytes=81), first.chosen)
    assert second.chosen == first.chosen
    assert plan(menus, Goal(max_bytes=640), first.chosen).num_changed == 0


def test_a_little_less_room_changes_few_slots() -> None:
    menus = {i: [*menu(*((2 * b, 0.01 * (1 + i / 20) * 4.0**-b) for b in range(1, 9))), keep(64)] for i in range(20)}
    before = plan(menus, Goal(max_bytes=600, good_error=0.0))
    after = plan(menus, Goal(max_bytes=590, good_error=0.0), before.chosen)
    assert after.stored_bytes <= 590
    assert sum(after.chosen[i] is not before.chosen[i] for i in range(20)) <= 6


@given(graphs(), st.integers(4, 240))
def test_planning_twice_for_the_same_changes_nothing(menus: Menus, budget: int) -> None:
    first = plan(menus, Goal(max_bytes=budget))
    assert plan(menus, Goal(max_bytes=budget), first.chosen).chosen == first.chosen


@settings(max_examples=60, deadline=None)
@given(
    errors=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    passes=st.lists(st.floats(0.0, 2.0), min_size=2, max_size=2),
    room=st.integers(20, 400),
)
def test_plans_over_a_chain_are_near_the_best_of_all(errors: list[float], passes: list[float], room: int) -> None:
    """0 is stored; 1 can be recomputed from 0, and 2 from 1."""
    menus: Menus = {
        0: [*menu(*((10 * 2**i, errors[0] / 4**i) for i in range(5))), keep(200)],
        1: [*menu(*((10 * 2**i, errors[1] / 4**i) for i in range(5))), keep(200), recompute(0, passes=passes[0])],
        2: [*menu(*((10 * 2**i, errors[2] / 4**i) for i in range(5))), keep(200), recompute(1, passes=passes[1])],
    }
    choices = (dict(zip(menus, one, strict=True)) for one in itertools.product(*menus.values()))
    fitting = [total(one) for one in choices if total(one).stored_bytes <= room]
    found = plan(menus, Goal(max_bytes=room))
    if fitting:
        assert found.stored_bytes <= room
        assert found.error <= 4.5 * min(one.error for one in fitting) + 1e-3


def test_a_budget_does_not_cost_the_whole_gradient() -> None:
    menus = {0: [*menu((1, 900.0), (4, 0.3), (8, 0.01)), keep(32)], 1: [*menu((1, 0.01)), keep(32)]}
    found = plan(menus, Goal(max_bytes=2, lost_error=LOST_ERROR))
    assert found.error <= LOST_ERROR
    assert not found.is_met
    assert found.stored_bytes == 5
