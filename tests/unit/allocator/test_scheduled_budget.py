from __future__ import annotations

from collections.abc import Iterator

import pytest

from daf.allocator import Arena
from daf.allocator.stats import reader

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena(64 * MIB) as arena:
        yield arena


def page_of(arena: Arena) -> reader.StatsPage:
    return reader.StatsPage(arena.page_path)


def outcome(arena: Arena, page: reader.StatsPage, generation: int) -> reader.Outcome:
    arena.flush()
    found = page.outcome(generation)
    assert found is not None
    return found


def test_a_budget_waits_for_its_step(arena: Arena) -> None:
    page = page_of(arena)
    generation = page.request_budget_at(32 * MIB, 2)
    assert outcome(arena, page, generation) == reader.Outcome("pending", 0, "waits for step 2")
    arena.step(0.1)
    assert arena.stats()["budget_bytes"] == 64 * MIB
    arena.step(0.1)
    assert arena.stats()["budget_bytes"] == 32 * MIB  # before anything else happens
    found = outcome(arena, page, generation)
    assert (found.state, found.reason) == ("applied", "at step 2")


def test_what_waits_can_be_taken_back(arena: Arena) -> None:
    page = page_of(arena)
    generation = page.request_budget_at(32 * MIB, 1)
    outcome(arena, page, generation)
    assert outcome(arena, page, page.request_cancel(generation)).state == "applied"
    arena.step(0.1)
    assert arena.stats()["budget_bytes"] == 64 * MIB
    assert outcome(arena, page, generation) == reader.Outcome("refused", 0, "taken back")
    assert outcome(arena, page, page.request_cancel(generation)).state == "refused"


def test_a_step_that_has_come_already_is_refused(arena: Arena) -> None:
    page = page_of(arena)
    arena.step(0.1)
    found = outcome(arena, page, page.request_budget_at(32 * MIB, 1))
    assert (found.state, found.reason) == ("refused", "step 1 has begun already")


def test_a_later_one_takes_its_place(arena: Arena) -> None:
    page = page_of(arena)
    first = page.request_budget_at(32 * MIB, 2)
    second = page.request_budget_at(16 * MIB, 1)
    assert outcome(arena, page, second).state == "pending"
    assert outcome(arena, page, first).state == "refused"
    arena.step(0.1)
    assert arena.stats()["budget_bytes"] == 16 * MIB


def test_a_budget_that_cannot_be_is_refused_at_its_step(arena: Arena) -> None:
    page = page_of(arena)
    block = arena.alloc(20 * MIB)
    generation = page.request_budget_at(1 * MIB, 1)
    outcome(arena, page, generation)
    arena.step(0.1)
    assert outcome(arena, page, generation).state in ("refused", "pending")
    arena.free(block)
