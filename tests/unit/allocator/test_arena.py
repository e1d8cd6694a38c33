"""The arena through its Python face: budget, eviction, pins, floors, both zones."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pathlib
import random
import re
from collections.abc import Iterator

import pytest

from daf.allocator import Arena, Stash
from daf.errors import DafError, DafOutOfMemoryError

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena(MIB, publish=False) as arena:
        yield arena
        assert arena.why_invalid() == ""


def three_planes(arena: Arena, cost: float = 1.0, floor: int = 1):
    return arena.stash_spec([PAGE] * 4, [0.0, 4 * cost, 2 * cost, cost], floor_streams=floor)


def test_resident_is_tensors_planes_and_cached(arena: Arena) -> None:
    block = arena.alloc(100_000)
    small = arena.alloc(100)
    stash = arena.reserve(three_planes(arena))
    arena.free(block)

    stats = arena.stats()

    assert stats["resident_bytes"] == stats["tensor_bytes"] + stats["plane_bytes"] + stats["cached_bytes"]
    assert stats["plane_bytes"] == 4 * PAGE
    assert stats["tensor_bytes"] == 128
    arena.free(small)
    stash.release()


def test_a_reserved_stash_is_pinned_and_shows_its_streams(arena: Arena) -> None:
    stash = arena.reserve(three_planes(arena))
    assert stash.num_streams == 4
    assert arena.evict(10) == 0
    stash.unpin()
    assert arena.evict(10) == 3
    assert stash.pin() == 1


def test_the_least_important_plane_per_byte_goes_first(arena: Arena) -> None:
    cheap = arena.reserve(arena.stash_spec([PAGE, PAGE], [0, 1.0]))
    large = arena.reserve(arena.stash_spec([PAGE, 8 * PAGE], [0, 2.0]))  # dearer, but per byte it is cheaper
    cheap.unpin()
    large.unpin()

    assert arena.evict(1) == 1

    assert (cheap.num_streams, large.num_streams) == (2, 1)


def test_ties_go_to_the_older_stash(arena: Arena) -> None:
    older, newer = (arena.reserve(three_planes(arena)) for _ in range(2))
    newer.unpin()
    older.unpin()
    arena.evict(1)
    assert (older.num_streams, newer.num_streams) == (3, 4)


def test_new_importance_changes_the_order(arena: Arena) -> None:
    older, newer = (arena.reserve(three_planes(arena)) for _ in range(2))
    older.unpin()
    newer.unpin()
    newer.set_importance([0, 0.4, 0.2, 0.1])
    arena.evict(1)
    assert (older.num_streams, newer.num_streams) == (4, 3)


def test_eviction_stops_at_the_floor(arena: Arena) -> None:
    stash = arena.reserve(three_planes(arena, floor=3))
    stash.unpin()
    assert arena.evict(10) == 1
    assert stash.num_streams == 3


def test_a_tensor_that_does_not_fit_takes_planes(arena: Arena) -> None:
    stashes = [arena.reserve(three_planes(arena, cost=i + 1)) for i in range(60)]
    for stash in stashes:
        stash.unpin()

    block = arena.alloc(MIB // 2)

    assert arena.stats()["evictions_tensor_total"] > 0
    assert arena.stats()["resident_bytes"] <= MIB
    assert all(stash.num_streams >= 1 for stash in stashes)
    arena.free(block)


def test_a_stash_that_does_not_fit_takes_planes_of_others(arena: Arena) -> None:
    stashes = [arena.reserve(three_planes(arena)) for _ in range(64)]
    for stash in stashes:
        stash.unpin()
    arena.reserve(arena.stash_spec([PAGE * 16], [0]))
    assert arena.stats()["evictions_stash_total"] == 16


def test_pinned_planes_are_never_taken(arena: Arena) -> None:
    stashes = [arena.reserve(three_planes(arena)) for _ in range(64)]
    with pytest.raises(DafOutOfMemoryError):
        arena.alloc(PAGE * 4)
    assert [stash.num_streams for stash in stashes] == [4] * 64


def test_a_request_that_cannot_fit_drops_nothing_and_says_what_would(arena: Arena) -> None:
    block = arena.alloc(MIB // 2)
    stash = arena.reserve(three_planes(arena))
    stash.unpin()

    with pytest.raises(DafOutOfMemoryError, match="would have") as failure:
        arena.alloc(MIB)

    assert "1.0 MiB asked for" in str(failure.value)
    assert "A budget of 1.5 MiB (1576960 bytes) would have" in str(failure.value)
    assert stash.num_streams == 4
    assert arena.stats()["oom_total"] == 1
    arena.free(block)
    arena.free(arena.alloc(MIB - 4 * PAGE))  # the next, smaller request works


def test_blocks_are_aligned_writable_and_apart(arena: Arena) -> None:
    rng = random.Random(5)
    blocks = {}
    for i in range(120):
        num_bytes = rng.choice([1, 63, 64, 65, 1000, 1025, 4097, 8192, 8193])
        pointer = arena.alloc(num_bytes)
        assert pointer % 64 == 0
        assert arena.block_bytes(pointer) >= num_bytes
        ctypes.memset(pointer, i, num_bytes)
        blocks[pointer] = (i, num_bytes)
    for pointer, (i, num_bytes) in blocks.items():
        assert ctypes.string_at(pointer, num_bytes) == bytes([i]) * num_bytes
        arena.free(pointer)
    assert arena.stats()["tensor_bytes"] == 0


def test_freed_neighbours_merge(arena: Arena) -> None:
    blocks = [arena.alloc(10 * PAGE) for _ in range(8)]
    for pointer in blocks[::2] + blocks[1::2]:
        arena.free(pointer)
    assert arena.stats()["free_extents"] == 1
    assert arena.alloc(80 * PAGE) == min(blocks)


@pytest.mark.parametrize("what", ["tensor", "small tensor", "stash"])
def test_the_named_budget_holds_the_request_and_a_page_less_does_not(arena: Arena, what: str) -> None:
    kept = [arena.alloc(30 * PAGE + 1) for _ in range(6)]
    for pointer in kept[::2]:
        arena.free(pointer)
    stashes = [arena.reserve(three_planes(arena)) for _ in range(20)]
    for stash in stashes[::2]:
        stash.unpin()
    while arena.stats()["oom_total"] == 0:  # until not even a slab or a stash of three pages fits
        with contextlib.suppress(DafOutOfMemoryError):
            kept.append(arena.alloc(3 * PAGE))

    def ask() -> object:
        if what == "stash":
            return arena.reserve(arena.stash_spec([PAGE, PAGE + 1], [0, 1]))
        return arena.alloc(100 if what == "small tensor" else 5 * PAGE)

    with pytest.raises(DafOutOfMemoryError) as failure:
        ask()
    found = re.search(r"\((\d+) bytes\) would have", str(failure.value))
    assert found is not None
    arena.set_budget(int(found[1]) - PAGE)
    with pytest.raises(DafOutOfMemoryError):
        ask()
    arena.set_budget(int(found[1]))
    assert ask()


@pytest.mark.parametrize("offset", [64, PAGE])
def test_freeing_what_is_no_block_is_an_error(arena: Arena, offset: int) -> None:
    pointer = arena.alloc(100_000)
    with pytest.raises(ValueError, match="not a live block"):
        arena.free(pointer + offset)
    arena.free(pointer)
    with pytest.raises(ValueError, match="not a live block"):
        arena.free(pointer)


def test_a_smaller_budget_drops_what_it_can_at_once(arena: Arena) -> None:
    stashes = [arena.reserve(three_planes(arena)) for _ in range(64)]
    for stash in stashes:
        stash.unpin()
    outcome = arena.set_budget(MIB // 2)
    assert outcome.state == "applied"
    assert arena.stats()["resident_bytes"] <= MIB // 2
    assert arena.stats()["evictions_budget_total"] == 128


def test_a_budget_below_what_is_held_is_pending_until_it_is_freed(arena: Arena) -> None:
    block = arena.alloc(MIB // 2)
    outcome = arena.set_budget(MIB // 4)
    assert outcome.state == "pending"
    assert outcome.least_bytes == MIB // 2
    arena.free(block)
    assert arena.stats()["resident_bytes"] <= MIB // 4


def test_a_budget_that_the_last_step_could_not_have_run_in_is_refused(arena: Arena) -> None:
    arena.free(arena.alloc(MIB // 2))
    arena.step(0.1)
    outcome = arena.set_budget(MIB // 4)
    assert (outcome.state, outcome.least_bytes) == ("refused", MIB // 2)
    assert arena.stats()["budget_bytes"] == MIB
    assert arena.set_budget(MIB // 4, force=True).state == "applied"


def test_a_larger_budget_holds_at_once(arena: Arena) -> None:
    assert arena.set_budget(4 * MIB).state == "applied"
    arena.free(arena.alloc(3 * MIB))


def test_trim_gives_cached_memory_back(arena: Arena) -> None:
    arena.free(arena.alloc(100 * PAGE))
    arena.reserve(three_planes(arena)).release()
    assert arena.stats()["cached_bytes"] == 104 * PAGE
    assert arena.trim() == 104 * PAGE
    assert arena.stats()["resident_bytes"] == 0


def test_a_dropped_stash_releases_its_pages(arena: Arena) -> None:
    stash = arena.reserve(three_planes(arena))
    stash.release()
    stash.release()
    arena.reserve(three_planes(arena))
    gc.collect()
    assert arena.stats()["stashes"] == 0


def test_a_stash_may_outlive_its_arena() -> None:
    arena = Arena(MIB, publish=False)
    stash = arena.reserve(three_planes(arena))
    arena.close()
    stash.release()
    with pytest.raises(DafError, match="closed"):
        arena.alloc(1)


def test_raw_bytes_and_planes_by_bit_are_counted(arena: Arena) -> None:
    stash = arena.reserve(arena.stash_spec([100, 2 * PAGE, PAGE + 1], [0, 2, 1]), raw_bytes=12345)
    stats = arena.stats()
    assert stats["saved_raw_bytes"] == 12345
    assert [stats[f"plane_{i}_bytes"] for i in range(4)] == [PAGE, 2 * PAGE, 2 * PAGE, 0]
    assert stats["plane_waste_bytes"] == PAGE - 100 + PAGE - 1
    stash.release()
    assert arena.stats()["plane_waste_bytes"] == 0


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_page_sizes_are_kept(page_bytes: int) -> None:
    with Arena(4 * MIB, page_bytes=page_bytes, publish=False) as arena:
        stash = arena.reserve(arena.stash_spec([10, 3 * page_bytes], [0, 1]))
        assert arena.stats()["plane_bytes"] == 4 * page_bytes
        stash.unpin()
        arena.evict(1)
        arena.trim()
        assert arena.why_invalid() == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [({"budget_bytes": 10}, "budget_bytes=10"), ({"budget_bytes": MIB, "page_bytes": 1000}, "page_bytes=1000")],
)
def test_bad_arguments_are_quoted(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Arena(**arguments, publish=False)


def test_a_forked_child_has_an_arena_of_its_own(arena: Arena) -> None:
    block = arena.alloc(PAGE * 3)
    child = os.fork()
    if child == 0:
        arena.free(block)
        ok = arena.is_valid() and arena.stats()["tensors"] == 0
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert arena.stats()["tensors"] == 1
    arena.free(block)


def test_what_is_at_its_floor_is_spilled_where_allowed_and_comes_back(tmp_path: pathlib.Path) -> None:
    with Arena(MIB, publish=False, spill_dir=tmp_path) as arena:
        stashes = numbered_stashes(arena, 40)
        stats = arena.stats()
        assert stats["spilled_bytes"] == 24 * 16 * PAGE
        assert stats["resident_bytes"] <= MIB
        stashes.pop(0).release()  # while it is in the file
        assert arena.why_invalid() == ""
        for i, stash in enumerate(stashes, start=1):
            stash.pin()
            assert content(stash) == bytes([i]) * 16 * PAGE
            assert arena.why_invalid() == ""
            stash.release()
        assert arena.stats()["spilled_bytes"] == 0
    assert list(tmp_path.iterdir()) == []


def test_planes_go_before_anything_is_spilled(tmp_path: pathlib.Path) -> None:
    with Arena(MIB, publish=False, spill_dir=tmp_path) as arena:
        spec = arena.stash_spec([8 * PAGE, 8 * PAGE], [0, 1])
        stashes = [arena.reserve(spec) for _ in range(16)]
        for stash in stashes:
            stash.unpin()
        arena.free(arena.alloc(MIB // 2))
        assert arena.stats()["evictions_total"] == 16
        assert arena.stats()["spills_total"] == 0
        arena.free(arena.alloc(MIB // 2 + 1))
        assert arena.stats()["spills_total"] == 1


def test_a_forked_child_leaves_what_its_parent_spilled_alone(tmp_path: pathlib.Path) -> None:
    with Arena(MIB, publish=False, spill_dir=tmp_path) as arena:
        stashes = numbered_stashes(arena, 20)
        child = os.fork()
        if child == 0:
            try:
                stashes[0].pin()
                os._exit(2)
            except DafOutOfMemoryError:
                for stash in stashes:
                    stash.release()
                os._exit(0 if arena.is_valid() else 1)
        assert os.waitpid(child, 0)[1] == 0
        for i, stash in enumerate(stashes):
            stash.pin()
            assert content(stash) == bytes([i]) * 16 * PAGE
            stash.unpin()


def test_a_spilled_stash_that_finds_no_room_says_what_it_needs(tmp_path: pathlib.Path) -> None:
    with Arena(MIB, publish=False, spill_dir=tmp_path) as arena:
        stashes = numbered_stashes(arena, 1)
        block = arena.alloc(MIB)
        with pytest.raises(DafOutOfMemoryError, match=r"0\.1 MiB asked for.* A budget of 1\.1 MiB"):
            stashes[0].pin()
        arena.free(block)
        stashes[0].pin()
        assert content(stashes[0]) == bytes([0]) * 16 * PAGE


def numbered_stashes(arena: Arena, count: int) -> list[Stash]:
    """Stashes of 16 pages, each full of its number, unpinned: those that no longer fit are spilled."""
    spec, stashes = arena.stash_spec([16 * PAGE], [0]), []
    for i in range(count):
        stashes.append(arena.reserve(spec))
        fill(stashes[-1], i)
        stashes[-1].unpin()
    return stashes


def fill(stash: Stash, value: int) -> None:
    for address in page_addresses(stash):
        ctypes.memset(address, value, PAGE)


def content(stash: Stash) -> bytes:
    return b"".join(ctypes.string_at(address, PAGE) for address in page_addresses(stash))


def page_addresses(stash: Stash) -> list[int]:
    """The pages of a stash of one stream of 16 pages, read from its view as a coder reads them."""
    pages = ctypes.cast(stash.planes, ctypes.POINTER(ctypes.c_void_p))[0]
    return [int(ctypes.cast(pages, ctypes.POINTER(ctypes.c_void_p))[i] or 0) for i in range(16)]


@pytest.mark.parametrize("page_bytes", [512, 1024, 2048])
def test_pages_smaller_than_the_systems_keep_the_budget(page_bytes: int) -> None:
    rng = random.Random(page_bytes)
    with Arena(2 * MIB, page_bytes=page_bytes, publish=False) as arena:
        blocks: list[int] = []
        stashes: list[Stash] = []
        for _ in range(3000):
            with contextlib.suppress(DafOutOfMemoryError):
                if rng.random() < 0.5:
                    blocks.append(arena.alloc(rng.choice([100, 5000, 70_000, 300_000])))
                else:
                    sizes = [rng.randrange(1, 20_000) for _ in range(4)]
                    stashes.append(arena.reserve(arena.stash_spec(sizes, [0.0, 3.0, 2.0, 1.0])))
                    stashes[-1].unpin()
            while len(blocks) > 12:
                arena.free(blocks.pop(rng.randrange(len(blocks))))
            while len(stashes) > 40:
                stashes.pop(rng.randrange(len(stashes))).release()
            assert arena.stats()["resident_bytes"] <= 2 * MIB
        assert arena.why_invalid() == ""
        assert arena.stats()["evictions_total"] > 0
