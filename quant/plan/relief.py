"""Late compression: what was kept exact is encoded after all, when a request for memory does not fit.

The arena asks from inside an allocation, in the thread that allocates. Tensors that nobody but the graph holds any more
are encoded there and then, least important first, until what is missing is free. A tensor is exact, then exact and
encoded, then encoded only: a backward that runs in another thread at this moment finds it in each of these states.

Encoding needs pages of its own before it frees anything. So only what fits into the room that is left, or that dropping
planes gives, is encoded, small tensors first if need be: each gives back several times what it takes.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from daf.errors import DafError
from daf.quant.encode.choice import LOSSY
from daf.quant.encode.encoder import INTEGERS, is_late_mask
from daf.quant.ops import ATTENTION
from daf.quant.plan.readers import is_logarithm, may_compress
from daf.quant.torch_internals import storage_use_count

if TYPE_CHECKING:
    from daf.quant.encode.backends import Backend
    from daf.quant.encode.encoder import Encoder
    from daf.quant.saved.handles import Exact
    from daf.quant.saved.layout import Layout
    from daf.quant.saved.ledger import Ledger

FLOAT_SHARE = 64  # of the budget: pages held back, so that there is room to encode the first tensor with
LOW_SHARE = 12  # of the budget: the room from which on they are,
NUM_LARGEST = 4  # or the room for so many more of the largest tensor kept so far
LOOK_SHARE = 8  # of the room: what may be kept until the next look at how much is left
Callback = Callable[[int], bool]
WAIT_SECONDS = 10.0  # for another thread that is encoding: longer than encoding all that is kept


@dataclass(frozen=True, slots=True)
class Entry:
    """One content that is kept exact, as long as it lives."""

    exact: weakref.ref[Exact]
    layout: Layout
    backend: Backend


@dataclass(frozen=True, slots=True)
class Step:
    """What late compression did in one step."""

    num_asked: int
    num_compressed: int
    other_bytes: int  # what everything but slots took, or asked for, when memory ran short


class Relief:
    """Holds weakly all that is kept exact, and encodes it when asked.

    is_news     it was asked since the last look
    is_filling  half of the budget is used
    """

    def __init__(self, encoder: Encoder, ledger: Ledger) -> None:
        self.is_news = False
        self.is_filling = False
        self._encoder = encoder
        self._entries: list[Entry] = []
        self._lock = threading.Lock()
        self._float: Any = None
        self._until_look = 0  # bytes
        self._largest_bytes = 0
        self._num_asked = 0
        self._num_compressed = 0
        self._ledger = ledger
        self._other_bytes = 0
        self._arena: Any = None

    def watch(self, arena: Any, around: Callable[[Callback], Callback] = lambda ask: ask) -> Callable[[], None]:
        """Be asked by `arena`, by way of `around`; returns what ends that. An arena that cannot ask has nothing to be
        ended."""
        set_pressure = getattr(arena, "set_pressure", None)
        if set_pressure is None:
            return lambda: None
        self._arena = arena
        set_pressure(around(self.__call__))
        return lambda: _end(set_pressure)

    def register(self, exact: Exact, layout: Layout, backend: Backend) -> None:
        self._entries.append(Entry(weakref.ref(exact), layout, backend))
        self._largest_bytes = max(self._largest_bytes, exact.raw_bytes)
        self._until_look -= exact.raw_bytes
        if self._until_look <= 0:
            self._hold_back(backend.arena)

    def _hold_back(self, arena: Any) -> None:
        """Encoding needs pages before it frees any: some are reserved as soon as memory gets short."""
        budget_bytes, room = int(arena.stats()["budget_bytes"]), _room(arena)
        self._until_look = room // LOOK_SHARE
        self.is_filling = room < budget_bytes // 2
        if self._float is None and room < max(budget_bytes // LOW_SHARE, NUM_LARGEST * self._largest_bytes):
            self._reserve(arena, budget_bytes // FLOAT_SHARE)

    def _reserve(self, arena: Any, num_bytes: int) -> None:
        with contextlib.suppress(DafError):
            self._float = arena.reserve(arena.stash_spec((num_bytes,), (0.0,)))

    def _let_go(self) -> None:
        held, self._float = self._float, None
        if held is not None:
            held.release()

    def end_step(self) -> Step:
        self._let_go()
        self._entries = [entry for entry in self._entries if entry.exact() is not None]
        step = Step(self._num_asked, self._num_compressed, self._other_bytes)
        self._num_asked = self._num_compressed = self._other_bytes = self._largest_bytes = self._until_look = 0
        return step

    def __call__(self, missing_bytes: int) -> bool:
        """Free at least so much, if there is as much. Returns whether anything was freed."""
        self.is_news = True
        self._num_asked += 1
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            return False
        try:
            self._let_go()
            self._ledger.settle()
            self._look(missing_bytes)
            reserve_bytes = int(self._arena.stats()["budget_bytes"]) // FLOAT_SHARE
            freed = self._free(missing_bytes + reserve_bytes)
            if freed >= missing_bytes + reserve_bytes:
                self._reserve(self._arena, reserve_bytes)  # for the next time
            return freed > 0
        finally:
            self._lock.release()

    def _look(self, missing_bytes: int) -> None:
        stats = self._arena.stats()
        taken = int(stats["resident_bytes"] - stats["cached_bytes"])
        self._other_bytes = max(self._other_bytes, taken + missing_bytes - self._ledger.stored_bytes)

    def _free(self, missing_bytes: int) -> int:
        freed = 0
        waiting = _in_order(_groups(list(self._entries)))
        while waiting and freed < missing_bytes:
            before = freed
            left = []
            for group in waiting:
                if freed >= missing_bytes:
                    break
                gain = self._compress(group)
                freed += max(gain, 0)
                if gain == 0:
                    left.append(group)  # did not fit; it may once others have given room
            waiting = left if freed > before else []
        return freed

    def _compress(self, group: list[Entry]) -> int:
        """The bytes that encoding one storage's contents frees; 0: no room to do it, -1: it cannot be done."""
        freed = 0
        for entry in group:
            exact = entry.exact()
            if exact is None:
                continue
            room = _room(entry.backend.arena) + int(entry.backend.arena.stats().get("droppable_bytes", 0))
            if exact.raw_bytes // 2 > room and len(group) == 1 and exact.raw_bytes // 4 > room:
                return 0
            try:
                stored = self._encoder.compress_late(exact, entry.layout, entry.backend)
            except (DafError, ValueError, RuntimeError):
                return 0
            if stored is None:
                return -1
            freed += exact.raw_bytes - stored.stored_bytes
            exact.compress(stored)
            self._num_compressed += 1
        return freed or -1


def _end(set_pressure: Callable[[None], None]) -> None:
    try:
        set_pressure(None)
    except DafError:  # the arena is closed already
        return


def _room(arena: Any) -> int:
    stats = arena.stats()
    taken = stats.get("resident_bytes", 0) - stats.get("cached_bytes", 0)
    return int(stats["budget_bytes"] - taken)


def _groups(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Contents by storage, of storages that would be free if all of them were encoded."""
    by_storage: defaultdict[int, list[Entry]] = defaultdict(list)
    counts: dict[int, int] = {}
    for entry in entries:
        exact = entry.exact()
        tensor = None if exact is None else exact.tensor
        if tensor is not None:
            storage = tensor.untyped_storage()
            by_storage[storage._cdata].append(entry)
            counts[storage._cdata] = storage_use_count(storage._cdata) - 1  # less the look itself
            del storage, tensor
    return [
        group
        for record, group in by_storage.items()
        if counts[record] <= len(group) and all(_is_allowed(entry) for entry in group)
    ]


def _is_allowed(entry: Entry) -> bool:
    exact = entry.exact()
    if exact is None:
        return False
    if _is_lossless(entry, exact):
        return True
    facts = exact.slot.facts
    if exact.dtype not in LOSSY or (not facts.is_read and exact.num_found < exact.num_saves):
        return False
    if not facts.ops.isdisjoint(ATTENTION) and not exact.is_consistent:
        return False
    return may_compress(exact.slot) or is_logarithm(exact.slot)


def _is_lossless(entry: Entry, exact: Exact) -> bool:
    """Whether what it holds, a mask or integers, comes back as it is, whoever reads it."""
    with contextlib.suppress(RuntimeError):  # a look at it takes memory too
        return exact.dtype is torch.bool or exact.dtype in INTEGERS or is_late_mask(exact, entry.layout)
    return False


def _in_order(groups: list[list[Entry]]) -> list[list[Entry]]:
    """What loses nothing first, then the least important per byte, logarithms last; what was saved first of equals: it
    is needed last."""

    def importance(group: list[Entry]) -> tuple[bool, bool, float]:
        pairs = [(entry, exact) for entry in group if (exact := entry.exact()) is not None]
        found = [exact for _, exact in pairs]
        num_bytes = sum(exact.raw_bytes for exact in found) or 1
        has_logarithm = any(is_logarithm(exact.slot) for exact in found)
        is_lossy = not all(_is_lossless(entry, exact) for entry, exact in pairs)
        return is_lossy, has_logarithm, sum(exact.slot.facts.importance for exact in found) / num_bytes

    return sorted(groups, key=importance)
