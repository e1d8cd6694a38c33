"""What the engine holds at this moment: the live storages by identity, and their bytes."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daf.quant._gate import Books
from daf.quant.torch_internals import storage_record

if TYPE_CHECKING:
    from torch import Tensor

    from daf.quant.saved.handles import Stored
    from daf.quant.saved.layout import Layout

# Storage record, address, elements, version, dtype, and shape with strides unless the elements fill their memory.
StorageKey = tuple[int, int, int, int, object, object]


def storage_key(tensor: Tensor, layout: Layout) -> StorageKey:
    """Two tensors with the same key, both alive, have the same content in the same order of memory."""
    shape = layout.is_dense or (layout.shape, layout.strides)
    record = storage_record(tensor)
    return record, tensor.data_ptr(), layout.numel, tensor._version, tensor.dtype, shape


@dataclass(slots=True, eq=False)
class Share:
    """What one content has in the books. It outlives the content, which is gone when its bytes are counted off.

    release   gives its stash back
    storage   weak reference that pins the address of the storage's record; torch frees it in a `__del__` of its own
    """

    raw_bytes: int
    stored_bytes: int
    is_saved: bool = False
    is_kept: bool = False
    is_watched: bool = False
    key: StorageKey | None = None
    release: Callable[[], None] | None = None
    storage: object = None


def _nobody(_raw_bytes: int, _kept_bytes: int) -> None:
    """Nobody wants to know what has no stash."""


class Ledger:
    """Counts in bytes, exact at every moment, and the table that finds a storage saved before.

    The table holds weak references: a storage lives as long as autograd holds a handle to it. Handles die inside
    autograd, where an exception of a signal's handler (Ctrl-C) would be lost in a `__del__`. So no code of ours runs
    there: their weak references put themselves on a list, in C, and `settle` counts them off at the next save or use.
    The arena knows its stashes; `tell` hears of saved tensors that have none: their bytes in plain training, and
    those kept here.
    """

    def __init__(self, tell: Callable[[int, int], None] = _nobody) -> None:
        self.books = Books()  # of the handles of tensors that are kept as they are
        self._tell_arena = tell
        self._told = (0, 0)
        self._told_books_bytes = 0
        self._entered = (0, 0, 0, 0)  # of what the gate answered: packs, parameters, small ones and their bytes
        self._held_bytes = 0  # kept without such a handle
        self._lock = threading.RLock()
        self._live: dict[StorageKey, weakref.ref[Stored]] = {}
        self._watched: dict[int, tuple[weakref.ref[object], Share]] = {}
        self._dead: deque[weakref.ref[object]] = deque()
        self.raw_bytes = 0
        self.stored_bytes = 0
        self.peak_raw_bytes = 0
        self.peak_stored_bytes = 0
        self.step_raw_bytes = 0
        self.step_fixed_bytes = 0
        self.exact_bytes = 0  # of slots; tensors that no plan can shrink are in passed_bytes
        self.recomputed_bytes = 0
        self.num_late = 0
        self.late_bytes = 0
        self.step_slot_bytes = 0
        self.last_slot_bytes = 0
        self.step_slot_raw_bytes = 0
        self.step_shares: dict[str, int] = {}
        self._step_shares = (0, 0)
        self._step_peak_bytes = 0
        self._step_kept_bytes = 0
        self._step_fixed_bytes = 0
        self.num_packs = 0
        self.num_coded = 0
        self.num_derived = 0
        self.num_shared = 0
        self.num_failures = 0
        self.passed: Counter[str] = Counter()

    def _tell(self, raw_bytes: int, kept_bytes: int) -> None:
        self._told = (self._told[0] + raw_bytes, self._told[1] + kept_bytes)
        self._tell_arena(raw_bytes, kept_bytes)

    def tell_to(self, tell: Callable[[int, int], None]) -> None:
        """From now on another arena hears, of all that there is."""
        with self._lock:
            raw_bytes, kept_bytes = self._told
            self._tell_arena(-raw_bytes, -kept_bytes)
            self._tell_arena = tell
            tell(raw_bytes, kept_bytes)

    def find(self, key: StorageKey) -> Stored | None:
        entry = self._live.get(key)
        return entry() if entry is not None else None

    def enter(self, stored: Stored, key: StorageKey) -> None:
        self.watch(stored, stored.share)
        self._live[key] = weakref.ref(stored)

    def add(self, stored: Stored) -> None:
        self.watch(stored, stored.share)
        with self._lock:
            self.num_coded += stored.stored_bytes > 0
            self.num_derived += stored.stored_bytes == 0
            self.raw_bytes += stored.raw_bytes
            self.stored_bytes += stored.stored_bytes
            self._count(stored.share, 1)
            self.step_slot_bytes = max(self.step_slot_bytes, self.stored_bytes)
            if self.raw_bytes > self._step_peak_bytes:
                self._step_peak_bytes = self.raw_bytes
                self._step_shares = (self.exact_bytes, self.recomputed_bytes)
            self.peak_raw_bytes = max(self.peak_raw_bytes, self.raw_bytes)
            self.peak_stored_bytes = max(self.peak_stored_bytes, self.stored_bytes)

    def watch(self, owner: object, share: Share) -> None:
        """Counts `share` off when `owner` is gone."""
        if not share.is_watched:
            share.is_watched = True
            reference = weakref.ref(owner, self._dead.append)
            self._watched[id(reference)] = (reference, share)

    def settle(self) -> None:
        """Counts off what died since the last time."""
        if self.books.live_bytes != self._told_books_bytes:
            self._tell_books()
        while self._dead:
            with self._lock:
                if not self._dead:
                    return
                _, share = self._watched.pop(id(self._dead.popleft()))
                self._drop(share)

    def _tell_books(self) -> None:
        with self._lock:
            change = self.books.live_bytes - self._told_books_bytes
            self._told_books_bytes += change
            self._tell(change, change)

    def _enter_books(self) -> None:
        """What the gate answered without a word counts too."""
        books = self.books
        with self._lock:
            now = (books.num_packs, books.num_parameters, books.num_small, books.small_bytes)
            packs, parameters, small, num_bytes = (new - old for new, old in zip(now, self._entered, strict=True))
            self._entered = now
            self.num_packs += packs
            for reason, number in (("parameter", parameters), ("small", small)):
                if number:
                    self.passed[reason] += number
            self._step_kept_bytes += num_bytes
            self._step_fixed_bytes += num_bytes

    @property
    def passed_bytes(self) -> int:
        """Of tensors that are kept as they are."""
        return self.books.live_bytes + self._held_bytes

    def _drop(self, share: Share) -> None:
        key = share.key
        if key is not None and (entry := self._live.get(key)) is not None and entry() is None:
            del self._live[key]
        if share.is_saved:
            self.raw_bytes -= share.raw_bytes
            self.stored_bytes -= share.stored_bytes
            self._count(share, -1)
        if share.release is not None:
            share.release()

    def _count(self, stored: Share, sign: int) -> None:
        if stored.stored_bytes == 0:
            self.recomputed_bytes += sign * stored.raw_bytes
            self._tell(sign * stored.raw_bytes, 0)
        elif stored.is_kept:
            self.exact_bytes += sign * stored.stored_bytes
            self._tell(sign * stored.raw_bytes, sign * stored.stored_bytes)

    def compress(self, stored: Stored, stored_bytes: int) -> None:
        """What was kept exact has a stash now, of which the arena knows."""
        with self._lock:
            if stored.is_saved:
                self._count(stored.share, -1)
                self.stored_bytes += stored_bytes - stored.stored_bytes
            stored.share.is_kept = False
            stored.share.stored_bytes = stored_bytes
            self.num_late += 1
            self.late_bytes += stored.raw_bytes

    def begin_step(self) -> None:
        """What the step before held at most becomes step_raw_bytes; what no plan can shrink, step_fixed_bytes."""
        self._enter_books()
        self.step_fixed_bytes = self._step_fixed_bytes
        self.step_raw_bytes = self._step_peak_bytes + self._step_kept_bytes
        self.step_shares = {
            "kept_bytes": self._step_shares[0] + self._step_kept_bytes,
            "recomputed_bytes": self._step_shares[1],
            "compressed_bytes": max(0, self._step_peak_bytes - sum(self._step_shares)),
        }
        self.last_slot_bytes, self.step_slot_bytes = self.step_slot_bytes, self.stored_bytes
        self.step_slot_raw_bytes = self._step_peak_bytes
        self._step_shares = (self.exact_bytes, self.recomputed_bytes)
        self._step_peak_bytes = self.raw_bytes
        self._step_kept_bytes = self._step_fixed_bytes = 0

    @property
    def seen_bytes(self) -> int:
        """The most that plain training held of the saves of the step that goes on, so far."""
        self._enter_books()
        return self._step_peak_bytes + self._step_kept_bytes

    def keep(self, reason: str, num_bytes: int, *, is_planned: bool = False) -> None:
        """A tensor is kept exact; is_planned: for now, because a plan says so."""
        self.passed[reason] += 1
        self._step_kept_bytes += num_bytes
        self._step_fixed_bytes += 0 if is_planned else num_bytes

    def hold(self, num_bytes: int) -> None:
        """A tensor of so many bytes is kept exact without a handle in the books; negative: no longer."""
        self._held_bytes += num_bytes
        self._tell(num_bytes, num_bytes)

    def note_exact(self, stored: Stored | None) -> None:
        """A mask, integers or raw bytes were stored: no width of theirs can be planned."""
        self._step_fixed_bytes += stored.stored_bytes if stored is not None else 0

    def counts(self) -> dict[str, int]:
        self.settle()
        self._enter_books()
        return {
            "packs_total": self.num_packs,
            "coded_total": self.num_coded,
            "derived_total": self.num_derived,
            "shared_total": self.num_shared,
            "failures_total": self.num_failures,
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "passed_bytes": self.passed_bytes,
            "late_total": self.num_late,
            "late_bytes_total": self.late_bytes,
            "peak_raw_bytes": self.peak_raw_bytes,
            "peak_stored_bytes": self.peak_stored_bytes,
            **{f"passed_{reason}_total": count for reason, count in sorted(self.passed.items())},
        }
