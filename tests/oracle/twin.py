"""The arena's policy in plain Python: the oracle that the C core is compared with, operation by operation, and the
shortest way to read what the arena does.

It keeps books only, no memory: extents are (offset, bytes), pages are a count. It mirrors an arena over the host's
memory, whose unit is one granule, without spilling.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedList

GRANULE_BYTES = 4096
SMALL_MAX_BYTES = 8192
SLAB_BYTES = 65536
NUM_GROWTH_CANDIDATES = 8
MIN_MOVE_BYTES = 65536
MIN_BUDGET_BYTES = 65536
LOOK_STEPS, LARGE_STEPS, MAX_PATIENCE_STEPS = 4, 64, 4096
CLASS_BYTES = [64 * i for i in range(1, 17)] + [1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192]


class OutOfMemory(Exception):  # noqa: N818 - the same word as the arena's
    """A request does not fit, everything droppable counted."""


def round_up(value: int, step: int) -> int:
    """Return the least multiple of `step` that is not below `value`."""
    return -(-value // step) * step


@dataclass(eq=False)
class TwinStash:
    """One stash: page counts by stream, and what each stream's loss would cost."""

    pages: list[int]
    importance: list[float]
    floor_streams: int
    age: int
    raw_bytes: int
    num_pins: int = 1

    @property
    def num_streams(self) -> int:
        return len(self.pages)

    @property
    def droppable_pages(self) -> int:
        return sum(self.pages[self.floor_streams :])


@dataclass(eq=False)
class Slab:
    """A live extent cut into blocks of one size; the lowest free block is handed out first."""

    offset: int
    class_id: int
    free: SortedList = field(default_factory=SortedList)

    @property
    def num_blocks(self) -> int:
        return SLAB_BYTES // CLASS_BYTES[self.class_id]

    @property
    def is_idle(self) -> bool:
        return len(self.free) == self.num_blocks


class Extents:
    """Free extents of one state: by size for best fit, by either end for merging."""

    def __init__(self) -> None:
        self.by_size = SortedList()  # (bytes, offset)
        self.by_start: dict[int, int] = {}  # offset -> bytes
        self.by_end: dict[int, int] = {}  # end -> offset
        self.num_bytes = 0

    def add(self, offset: int, num_bytes: int) -> None:
        """Add a free stretch, merged with its neighbours."""
        if num_bytes == 0:
            return
        if offset in self.by_end:
            before = self.by_end[offset]
            offset, num_bytes = before, num_bytes + self.remove(before)
        if offset + num_bytes in self.by_start:
            num_bytes += self.remove(offset + num_bytes)
        self.by_size.add((num_bytes, offset))
        self.by_start[offset] = num_bytes
        self.by_end[offset + num_bytes] = offset
        self.num_bytes += num_bytes

    def remove(self, offset: int) -> int:
        """Take an extent out; returns its bytes."""
        num_bytes = self.by_start.pop(offset)
        del self.by_end[offset + num_bytes]
        self.by_size.remove((num_bytes, offset))
        self.num_bytes -= num_bytes
        return num_bytes

    def best_fit(self, num_bytes: int) -> int | None:
        """Return the offset of the smallest extent that holds `num_bytes`, the lowest of equals."""
        at = self.by_size.bisect_left((num_bytes, 0))
        return self.by_size[at][1] if at < len(self.by_size) else None


class Twin:
    """The arena's oracle. Methods are named and ordered as the C functions are."""

    def __init__(self, budget_bytes: int, page_bytes: int = 4096, span_bytes: int = 1 << 40) -> None:
        self.budget_bytes = budget_bytes
        self.page_bytes = page_bytes
        self.span_bytes = span_bytes
        self.dirty, self.clean = Extents(), Extents()
        self.clean.add(0, span_bytes)
        self.live: dict[int, int] = {}  # offset of a large block -> bytes
        self.small: dict[int, Slab] = {}  # offset of a small block -> its slab
        self.slabs: dict[int, Slab] = {}  # by offset
        self.partial: list[list[Slab]] = [[] for _ in CLASS_BYTES]  # the last is used first
        self.num_dirty_pages = 0
        self.stashes: set[TwinStash] = set()
        self.index = SortedList(key=self._order)
        self.next_age = 0
        self.num_evictions = 0
        self.step_held_bytes = 0
        self.last_step_held_bytes = 0
        self.tensor_bytes = self.small_bytes = self.num_used_pages = self.droppable_pages = 0
        self.taking_bytes = 0  # of the extent that is being handed out
        self.num_steps = self.grown_bytes = 0
        self.last_look = self.unused_steps = 0
        self.patience_steps = LOOK_STEPS
        self.look_grown_bytes = self.look_trimmed_bytes = 0
        self.low_cached_bytes: float = math.inf
        self.unused_bytes: float = math.inf

    # ---- sums ----

    @property
    def plane_bytes(self) -> int:
        return self.num_used_pages * self.page_bytes

    @property
    def resident_bytes(self) -> int:
        return self.tensor_bytes + self.taking_bytes + self.plane_bytes + self.cached_bytes

    @property
    def cached_bytes(self) -> int:
        return self.dirty.num_bytes + self.slack_bytes + self.num_dirty_pages * self.page_bytes

    @property
    def slack_bytes(self) -> int:
        return len(self.slabs) * SLAB_BYTES - self.small_bytes

    @property
    def idle_bytes(self) -> int:
        return sum(SLAB_BYTES for slab in self.slabs.values() if slab.is_idle)

    @property
    def droppable_bytes(self) -> int:
        return self.droppable_pages * self.page_bytes

    @property
    def held_bytes(self) -> int:
        return self.tensor_bytes + self.slack_bytes - self.idle_bytes + self.plane_bytes - self.droppable_bytes

    def stats(self) -> dict[str, int]:
        """Return what the C core is compared with after every operation."""
        names = ("budget_bytes", "resident_bytes", "tensor_bytes", "plane_bytes", "cached_bytes", "droppable_bytes")
        return {
            **{name: getattr(self, name) for name in names},
            "held_bytes": self.held_bytes,
            "stashes": len(self.stashes),
            "evictable_stashes": len(self.index),
            "tensors": len(self.live) + len(self.small),
            "free_extents": len(self.dirty.by_size),
            "largest_free_bytes": self.dirty.by_size[-1][0] if self.dirty.by_size else 0,
            "evictions_total": self.num_evictions,
            "grown_bytes_total": self.grown_bytes,
            "last_step_held_bytes": self.last_step_held_bytes,
        }

    def _note(self) -> None:
        self.step_held_bytes = max(self.step_held_bytes, self.held_bytes)
        self.low_cached_bytes = min(self.low_cached_bytes, self.cached_bytes)

    # ---- tensor zone ----

    def alloc(self, num_bytes: int) -> int:
        """Return the offset of a block."""
        num_bytes = max(1, num_bytes)
        if num_bytes <= SMALL_MAX_BYTES:
            offset = self._small_alloc(num_bytes)
        else:
            offset = self._extent_alloc(num_bytes)
            self.live[offset] = round_up(num_bytes, GRANULE_BYTES)
            self.tensor_bytes += self.live[offset]
        self._note()
        return offset

    def free(self, offset: int) -> None:
        """Take a block back."""
        if offset in self.small:
            self._small_free(offset)
        else:
            num_bytes = self.live.pop(offset)
            self.tensor_bytes -= num_bytes
            self.dirty.add(offset, num_bytes)
        self._after_free()

    def _extent_alloc(self, num_bytes: int) -> int:
        num_bytes = round_up(num_bytes, GRANULE_BYTES)
        offset = self._best_dirty_fit(num_bytes)
        if offset is None and self.idle_bytes and self._over(num_bytes):
            self._small_trim()
            offset = self._best_dirty_fit(num_bytes)
        grown = 0
        if offset is None:
            grown = self._grow(num_bytes)
            offset = self.dirty.best_fit(num_bytes)
        assert offset is not None
        rest = self.dirty.remove(offset) - num_bytes
        self.dirty.add(offset + num_bytes, rest)
        if grown:
            self.taking_bytes = num_bytes
            self._fill(grown, with_pages=True)
            self._make_room()
            self.taking_bytes = 0
        return offset

    def _best_dirty_fit(self, num_bytes: int) -> int | None:
        """The best fit, but the extent before the free end of the zone, which can grow in place, only if no other."""
        at = self.dirty.by_size.bisect_left((num_bytes, 0))
        fits = self.dirty.by_size[at : at + 2]
        if len(fits) == 2:
            end = fits[0][0] + fits[0][1]
            is_last = end + self.clean.by_start.get(end, -1) == self.span_bytes
            return int(fits[1][1] if is_last else fits[0][1])
        return int(fits[0][1]) if fits else None

    def _plan_growth(self, num_bytes: int) -> tuple[int | None, int, int, bool]:
        """Return the dirty extent to grow, the clean one to grow into, the bytes to commit, and whether it follows."""
        for size, offset in reversed(self.dirty.by_size[-NUM_GROWTH_CANDIDATES:]):
            missing = num_bytes - size
            if self.clean.by_start.get(offset + size, 0) >= missing:
                return offset, offset + size, missing, True
            before = self.clean.by_end.get(offset)
            if before is not None and self.clean.by_start[before] >= missing:
                return offset, before, missing, False
        clean = self.clean.best_fit(num_bytes)
        if clean is None:
            raise OutOfMemory
        return None, clean, num_bytes, True

    def _grow(self, num_bytes: int) -> int:
        """Commit until a dirty extent of `num_bytes` exists; returns how much that took."""
        dirty, clean, missing, follows = self._plan_growth(num_bytes)
        self._check_admission(missing, dirty)
        clean_bytes = self.clean.remove(clean)
        self.grown_bytes += missing
        if follows:
            self.clean.add(clean + missing, clean_bytes - missing)
            self.dirty.add(clean, missing)
        else:
            self.clean.add(clean, clean_bytes - missing)
            self.dirty.add(clean + clean_bytes - missing, missing)
        return missing

    def _fill(self, num_bytes: int, with_pages: bool) -> None:
        """Pay for what was just committed with what is cached: the largest extents, then maybe pages."""
        left = num_bytes
        while left >= MIN_MOVE_BYTES and self.dirty.by_size and self.dirty.by_size[-1][0] >= MIN_MOVE_BYTES:
            size, offset = self.dirty.by_size[-1]
            left -= self._cut(offset, min(size, left))
        pages_bytes = min(left, self.num_dirty_pages * self.page_bytes)
        if with_pages and pages_bytes >= MIN_MOVE_BYTES:
            left -= self._pages_trim(pages_bytes)
        self.grown_bytes -= num_bytes - left

    def _cut(self, offset: int, num_bytes: int) -> int:
        """The last `num_bytes` of a dirty extent become clean."""
        rest = self.dirty.remove(offset) - num_bytes
        self.dirty.add(offset, rest)
        self.clean.add(offset + rest, num_bytes)
        return num_bytes

    def _tensors_trim(self, max_bytes: int, keep: int | None = None) -> int:
        if keep is None and self.dirty.num_bytes < max_bytes:
            self._small_trim()
        given = 0
        for size, offset in reversed(list(self.dirty.by_size)):
            if given >= max_bytes:
                break
            if offset == keep:
                continue
            given += self._cut(offset, min(size, round_up(max_bytes - given, GRANULE_BYTES)))
        return given

    # ---- small blocks ----

    def _small_alloc(self, num_bytes: int) -> int:
        class_id = next(i for i, size in enumerate(CLASS_BYTES) if size >= num_bytes)
        if not self.partial[class_id]:
            offset = self._extent_alloc(SLAB_BYTES)
            slab = Slab(offset, class_id)
            slab.free.update(range(slab.num_blocks))
            self.slabs[offset] = slab
            self.partial[class_id].append(slab)
        slab = self.partial[class_id][-1]
        block = slab.free.pop(0)
        if not slab.free:
            self.partial[class_id].pop()
        offset = slab.offset + block * CLASS_BYTES[class_id]
        self.small[offset] = slab
        self.tensor_bytes += CLASS_BYTES[class_id]
        self.small_bytes += CLASS_BYTES[class_id]
        return int(offset)

    def _small_free(self, offset: int) -> None:
        slab = self.small.pop(offset)
        size = CLASS_BYTES[slab.class_id]
        had_idle = any(other.is_idle for other in self.partial[slab.class_id])
        if not slab.free:
            self.partial[slab.class_id].append(slab)
        slab.free.add((offset - slab.offset) // size)
        self.tensor_bytes -= size
        self.small_bytes -= size
        if slab.is_idle and had_idle:
            self._dissolve(slab)

    def _dissolve(self, slab: Slab) -> None:
        self.partial[slab.class_id].remove(slab)
        del self.slabs[slab.offset]
        self.dirty.add(slab.offset, SLAB_BYTES)

    def _small_trim(self) -> None:
        for slab in sorted((slab for slab in self.slabs.values() if slab.is_idle), key=lambda slab: slab.class_id):
            self._dissolve(slab)

    # ---- stashes ----

    def _order(self, stash: TwinStash) -> tuple[float, int]:
        """Importance per byte that the last stream's loss would free; ties: the older first."""
        num_bytes = stash.pages[-1] * self.page_bytes
        return (max(0.0, stash.importance[stash.num_streams - 1] / num_bytes) if num_bytes else 0.0, stash.age)

    def _index(self, stash: TwinStash) -> None:
        if stash.num_streams > stash.floor_streams:
            self.index.add(stash)
            self.droppable_pages += stash.droppable_pages

    def _unindex(self, stash: TwinStash) -> None:
        if stash.num_pins == 0 and stash.num_streams > stash.floor_streams:
            self.index.remove(stash)
            self.droppable_pages -= stash.droppable_pages

    def reserve(
        self, stream_bytes: Sequence[int], importance: Sequence[float], floor_streams: int = 1, raw_bytes: int = 0
    ) -> TwinStash:
        """Return a pinned stash."""
        pages = [math.ceil(num_bytes / self.page_bytes) for num_bytes in stream_bytes]
        self._admit_pages(sum(pages))
        self.num_dirty_pages -= sum(pages)
        self.num_used_pages += sum(pages)
        self.next_age += 1
        floor = min(floor_streams, len(pages))
        stash = TwinStash(pages, [_as_float32(x) for x in importance], floor, self.next_age, raw_bytes)
        self.stashes.add(stash)
        self._note()
        return stash

    def pin(self, stash: TwinStash) -> None:
        """Keep a stash from eviction."""
        self._unindex(stash)
        stash.num_pins += 1
        self._note()

    def unpin(self, stash: TwinStash) -> None:
        """Undo one pin."""
        stash.num_pins -= 1
        if stash.num_pins == 0:
            self._index(stash)
            self._after_free()

    def release(self, stash: TwinStash) -> None:
        """Give all pages back."""
        self._unindex(stash)
        self.stashes.remove(stash)
        self.num_used_pages -= sum(stash.pages)
        self.num_dirty_pages += sum(stash.pages)
        self._after_free()

    def set_importance(self, stash: TwinStash, importance: Sequence[float]) -> None:
        """Change what the loss of each live stream would cost."""
        self._unindex(stash)
        stash.importance = [_as_float32(x) for x in importance]
        if stash.num_pins == 0:
            self._index(stash)

    def _evict_one(self) -> bool:
        if not self.index:
            return False
        stash = self.index[0]
        self._unindex(stash)
        dropped = stash.pages.pop()
        self.num_used_pages -= dropped
        self.num_dirty_pages += dropped
        self._index(stash)
        self.num_evictions += 1
        return True

    def evict(self, max_count: int) -> int:
        """Drop planes by hand; returns how many."""
        count = 0
        while count < max_count and self._evict_one():
            count += 1
        self._after_free()
        return count

    def _pages_trim(self, max_bytes: int) -> int:
        given = min(self.num_dirty_pages, math.ceil(max_bytes / self.page_bytes))
        self.num_dirty_pages -= given
        return given * self.page_bytes

    # ---- budget ----

    def _over(self, num_bytes: int) -> int:
        return max(0, self.resident_bytes + num_bytes - self.budget_bytes)

    def _check_admission(self, num_bytes: int, keep: int | None) -> None:
        kept = self.dirty.by_start[keep] if keep is not None else 0
        free_bytes = self.dirty.num_bytes + self.idle_bytes - kept + self.num_dirty_pages * self.page_bytes
        if self._over(num_bytes) > free_bytes + self.droppable_bytes:
            raise OutOfMemory

    def _make_room(self) -> None:
        self._pages_trim(self._over(0))
        if over := self._over(0):
            self._tensors_trim(over)
        while self._over(0) and self._evict_one():
            self._pages_trim(self._over(0))

    def _missing(self, num_pages: int) -> int:
        return max(0, num_pages - self.num_dirty_pages) * self.page_bytes

    def _admit_pages(self, num_pages: int) -> None:
        if not self._missing(num_pages):
            return
        lendable = self.dirty.num_bytes + self.idle_bytes
        if self._over(self._missing(num_pages)) > lendable + self.droppable_bytes:
            raise OutOfMemory
        while self._missing(num_pages) and self._over(self._missing(num_pages)) > lendable:
            if not self._evict_one():
                raise OutOfMemory
        if missing := self._missing(num_pages):
            self.grown_bytes += missing
            self.num_dirty_pages = num_pages
            self._fill(missing, with_pages=False)
            self._tensors_trim(self._over(0))

    def _shrink(self) -> None:
        while over := self._over(0):
            given = self._pages_trim(over)
            if over := self._over(0):
                given += self._tensors_trim(over)
            if not given and not self._evict_one():
                return

    def _after_free(self) -> None:
        self._shrink()

    def set_budget(self, num_bytes: int) -> tuple[str, int]:
        """Return the outcome's state and the least budget that would do."""
        needed = self.last_step_held_bytes
        if num_bytes < MIN_BUDGET_BYTES:
            return "refused", max(needed, MIN_BUDGET_BYTES)
        if num_bytes < needed:
            return "refused", needed
        self.budget_bytes = num_bytes
        self._shrink()
        return "pending" if self._over(0) else "applied", self.held_bytes

    def trim(self, max_bytes: int) -> int:
        """Give cached memory back; returns how much."""
        given = self._pages_trim(max_bytes)
        return given + (self._tensors_trim(max_bytes - given) if given < max_bytes else 0)

    def step(self) -> None:
        """One training step ended."""
        self.num_steps += 1
        self.last_step_held_bytes = self.step_held_bytes
        self.step_held_bytes = self.held_bytes
        if self.num_steps - self.last_look >= LOOK_STEPS:
            self._decay()

    def _decay(self) -> None:
        """Give back what nobody needed for some steps; be more patient if it was wanted again at once."""
        grown = self.grown_bytes - self.look_grown_bytes
        if self.look_trimmed_bytes:
            was_wanted = grown >= self.look_trimmed_bytes // 2
            patience = self.patience_steps * 2 if was_wanted else self.patience_steps // 2
            self.patience_steps = min(max(patience, LOOK_STEPS), MAX_PATIENCE_STEPS)
        self.look_grown_bytes, self.look_trimmed_bytes, self.last_look = self.grown_bytes, 0, self.num_steps
        surplus = min(self.low_cached_bytes, self.cached_bytes)
        self.low_cached_bytes = math.inf
        if surplus < max(self.resident_bytes // 64, 1):
            self.unused_bytes, self.unused_steps = math.inf, 0
            return
        self.unused_bytes = min(self.unused_bytes, surplus)
        self.unused_steps += LOOK_STEPS
        is_large = self.unused_bytes >= self.resident_bytes // 8
        if self.unused_steps >= self.patience_steps or (is_large and self.unused_steps >= LARGE_STEPS):
            self.look_trimmed_bytes = self.trim(int(self.unused_bytes))
            self.unused_bytes, self.unused_steps = math.inf, 0


def _as_float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
