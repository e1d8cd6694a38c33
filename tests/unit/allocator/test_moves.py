"""Cached memory goes where memory is needed: holes cost nothing, and live memory never notices."""

from __future__ import annotations

import ctypes
import pathlib
import random
from collections.abc import Iterator

import pytest

from daf.allocator import Arena

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena(1 << 30, publish=False) as arena:
        yield arena
        assert arena.why_invalid() == ""


def mark(address: int, num_bytes: int, value: int) -> None:
    ctypes.memset(address, value, num_bytes)


def shows(address: int, num_bytes: int, value: int) -> bool:
    return ctypes.string_at(address, num_bytes) == bytes([value]) * num_bytes


def leave_holes(arena: Arena, count: int) -> list[int]:
    """Return `count` live blocks of 1 MiB with a hole of 1 MiB before each."""
    blocks = [arena.alloc(MIB) for _ in range(2 * count)]
    for i, block in enumerate(blocks):
        mark(block, MIB, i % 2 + 1)
    for block in blocks[::2]:
        arena.free(block)
    return blocks[1::2]


def test_a_block_that_fits_no_hole_is_paid_for_with_the_memory_of_all(arena: Arena) -> None:
    live = leave_holes(arena, 8)
    before = arena.stats()["resident_bytes"]
    large = arena.alloc(8 * MIB)
    mark(large, 8 * MIB, 7)
    stats = arena.stats()
    assert stats["resident_bytes"] == before
    assert stats["moved_bytes_total"] == 8 * MIB
    assert all(shows(block, MIB, 2) for block in live)
    assert shows(large, 8 * MIB, 7)
    for block in (*live, large):
        arena.free(block)


def test_the_process_grows_no_more_than_the_books_say(arena: Arena) -> None:
    live = leave_holes(arena, 32)
    before = arena.stats()["process_resident_bytes"]
    large = arena.alloc(31 * MIB)
    mark(large, 31 * MIB, 7)
    assert arena.stats()["process_resident_bytes"] < before + 8 * MIB
    for block in (*live, large):
        arena.free(block)


def test_stashes_use_the_memory_of_freed_tensors_and_tensors_that_of_released_stashes(arena: Arena) -> None:
    arena.free(arena.alloc(8 * MIB))
    stash = arena.reserve(arena.stash_spec([8 * MIB], [1.0]))
    assert arena.stats()["resident_bytes"] == 8 * MIB
    stash.release()
    block = arena.alloc(8 * MIB)
    assert arena.stats()["resident_bytes"] == 8 * MIB
    arena.free(block)


def test_within_a_budget_moved_memory_costs_no_plane() -> None:
    with Arena(16 * MIB, publish=False) as arena:
        live = leave_holes(arena, 4)
        stash = arena.reserve(arena.stash_spec([MIB, 7 * MIB], [1.0, 1.0]))
        stash.unpin()
        large = arena.alloc(4 * MIB)
        stats = arena.stats()
        assert stats["evictions_total"] == 0
        assert stats["resident_bytes"] == 16 * MIB
        for block in (*live, large):
            arena.free(block)
        stash.release()
        assert arena.why_invalid() == ""


def test_after_many_moves_the_process_has_few_mappings_and_every_block_is_whole(arena: Arena) -> None:
    rng = random.Random(1)
    start = num_mappings()
    live: list[tuple[int, int, int]] = []
    for step in range(120):
        for i in range(60):
            num_bytes = rng.randrange(64, 640) << 10
            block = arena.alloc(num_bytes)
            mark(block, num_bytes, (step + i) % 251)
            live.append((block, num_bytes, (step + i) % 251))
            if len(live) > 40:
                arena.free(checked(live.pop(rng.randrange(len(live)))))
        arena.step(0.1)
    stats = arena.stats()
    assert stats["moved_bytes_total"] > stats["peak_resident_bytes"]
    assert num_mappings() < start + 16384
    for entry in live:
        arena.free(checked(entry))


def test_a_huge_page_never_brings_memory_that_is_not_counted(arena: Arena) -> None:
    num_bytes, count = 8 * MIB, 12
    blocks = [arena.alloc(num_bytes) for _ in range(2 * count)]
    for block in blocks:
        mark(block, num_bytes, 1)
    for block in blocks[::2]:
        arena.free(block)
    large = arena.alloc(num_bytes * count)  # takes the memory of the holes
    mark(large, num_bytes * count, 2)
    parts = [arena.alloc(5 * MIB - PAGE) for _ in range(count)]  # one in each hole, no whole number of huge pages
    before = arena.stats()["process_resident_bytes"]
    for part in parts:
        mark(part, 5 * MIB - PAGE, 3)
    assert arena.stats()["process_resident_bytes"] - before < count * 5 * MIB + MIB
    for block in (*blocks[1::2], large, *parts):
        arena.free(block)


def checked(entry: tuple[int, int, int]) -> int:
    block, num_bytes, value = entry
    assert shows(block, num_bytes, value)
    return block


def num_mappings() -> int:
    return len(pathlib.Path("/proc/self/maps").read_text().splitlines())
