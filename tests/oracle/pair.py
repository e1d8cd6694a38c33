"""The C arena and its Python twin, side by side: every operation on both, every number compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from daf.allocator import Arena
from daf.errors import DafOutOfMemoryError
from tests.oracle.twin import OutOfMemory, Twin, TwinStash

BUDGET_BYTES = 4 << 20
RESERVE_BYTES = 1 << 30


class Pair:
    """An arena and its twin. Blocks and stashes are numbered by age, the same on both sides."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES, page_bytes: int = 4096) -> None:
        self.arena = Arena(budget_bytes, page_bytes=page_bytes, publish=False, reserve_bytes=RESERVE_BYTES)
        self.twin = Twin(budget_bytes, page_bytes, RESERVE_BYTES)
        self.base: int | None = None
        self.blocks: list[tuple[int, int]] = []  # address, offset
        self.stashes: list[tuple[Any, TwinStash]] = []
        self.names = list(self.twin.stats())

    def close(self) -> None:
        assert self.arena.why_invalid() == ""
        self.stashes.clear()
        self.arena.close()

    def compare(self) -> None:
        stats = self.arena.stats()
        assert {name: stats[name] for name in self.names} == self.twin.stats()
        assert stats["resident_bytes"] == stats["tensor_bytes"] + stats["plane_bytes"] + stats["cached_bytes"]

    def compare_stashes(self) -> None:
        ours = [stash.num_streams for stash, _ in self.stashes]
        assert ours == [twin.num_streams for _, twin in self.stashes]
        assert self.arena.why_invalid() == ""

    def alloc(self, num_bytes: int) -> bool:
        try:
            address = self.arena.alloc(num_bytes)
        except DafOutOfMemoryError:
            expect_out_of_memory(lambda: self.twin.alloc(num_bytes))
            return False
        offset = self.twin.alloc(num_bytes)
        self.base = address - offset if self.base is None else self.base
        assert address - self.base == offset
        self.blocks.append((address, offset))
        return True

    def free(self, i: int) -> None:
        address, offset = self.blocks.pop(i)
        self.arena.free(address)
        self.twin.free(offset)

    def reserve(self, stream_bytes: Sequence[int], importance: Sequence[float], floor_streams: int) -> bool:
        spec = self.arena.stash_spec(stream_bytes, importance, floor_streams)
        try:
            stash = self.arena.reserve(spec)
        except DafOutOfMemoryError:
            expect_out_of_memory(lambda: self.twin.reserve(stream_bytes, importance, floor_streams))
            return False
        self.stashes.append((stash, self.twin.reserve(stream_bytes, importance, floor_streams)))
        return True

    def pin(self, i: int) -> None:
        stash, twin = self.stashes[i]
        stash.pin()
        self.twin.pin(twin)

    def unpin(self, i: int) -> None:
        stash, twin = self.stashes[i]
        if twin.num_pins:
            stash.unpin()
            self.twin.unpin(twin)

    def release(self, i: int) -> None:
        stash, twin = self.stashes.pop(i)
        stash.release()
        self.twin.release(twin)

    def set_importance(self, i: int, importance: Sequence[float]) -> None:
        stash, twin = self.stashes[i]
        stash.set_importance(importance)
        self.twin.set_importance(twin, importance)

    def evict(self, max_count: int) -> None:
        assert self.arena.evict(max_count) == self.twin.evict(max_count)

    def trim(self, max_bytes: int) -> None:
        assert self.arena.trim(max_bytes) == self.twin.trim(max_bytes)

    def set_budget(self, num_bytes: int) -> None:
        outcome = self.arena.set_budget(num_bytes)
        assert (outcome.state, outcome.least_bytes) == self.twin.set_budget(num_bytes)

    def step(self) -> None:
        self.arena.step(1.0)
        self.twin.step()


def expect_out_of_memory(operation: Any) -> None:
    try:
        operation()
    except OutOfMemory:
        return
    raise AssertionError("the arena had no memory for it, its twin had")


SIZES = (1, 64, 100, 700, 1025, 4096, 5000, 8192, 8193, 20_000, 70_000, 300_000, 1_000_000)
STREAMS = (1, 100, 4096, 4097, 20_000, 100_000)


def random_streams(rng: random.Random) -> tuple[list[int], list[float], int]:
    count = rng.randint(1, 6)
    importance = [float(rng.choice([0, 1, 2, 3, rng.random()])) for _ in range(count)]
    return [rng.choice(STREAMS) for _ in range(count)], importance, rng.randint(1, count)


def random_operation(pair: Pair, rng: random.Random, growth: float) -> None:
    """One operation; `growth` is the share of requests that ask rather than give back."""
    dice = rng.random()
    if dice < 0.48:
        if rng.random() < growth or not pair.blocks:
            pair.alloc(rng.choice(SIZES))
        else:
            pair.free(rng.randrange(len(pair.blocks)))
    elif dice < 0.70 or not pair.stashes:
        if rng.random() < growth or not pair.stashes:
            pair.reserve(*random_streams(rng))
        else:
            pair.release(rng.randrange(len(pair.stashes)))
    elif dice < 0.90:
        pair.unpin(rng.randrange(len(pair.stashes)))
    elif dice < 0.95:
        pair.pin(rng.randrange(len(pair.stashes)))
    else:
        rare_operation(pair, rng)


def rare_operation(pair: Pair, rng: random.Random) -> None:
    dice = rng.random()
    if dice < 0.3:
        pair.set_importance(rng.randrange(len(pair.stashes)), [rng.random() for _ in range(6)])
    elif dice < 0.5:
        pair.evict(rng.randint(1, 3))
    elif dice < 0.7:
        pair.trim(rng.choice([1, 5000, 1 << 20, 1 << 30]))
    elif dice < 0.9:
        pair.set_budget(rng.choice([1000, 1 << 20, 3 << 20, BUDGET_BYTES, 2 * BUDGET_BYTES]))
    else:
        pair.step()


def run(num_operations: int, seed: int, walk_every: int = 2000) -> None:
    """Compare all numbers after each operation, and every stash and structure now and then."""
    rng, pair, growth = random.Random(seed), Pair(), 0.5
    for i in range(num_operations):
        if i % 400 == 0:
            growth = rng.choice([0.35, 0.45, 0.55, 0.7])
        random_operation(pair, rng, growth)
        pair.compare()
        if i % walk_every == 0:
            pair.compare_stashes()
    pair.compare_stashes()
    pair.close()
