"""What the engine holds at this moment: the live storages by identity, and their bytes."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from daf.quant.fidelity import Monitor
from daf.quant.recent import Recent

if TYPE_CHECKING:
    from torch import Tensor

    from daf.quant.handles import Stored
    from daf.quant.layout import Layout

# Storage record, address, elements, version, dtype, and shape with strides unless the elements fill their memory.
StorageKey = tuple[int, int, int, int, object, object]


def storage_key(tensor: Tensor, layout: Layout) -> StorageKey:
    """Two tensors with the same key, both alive, have the same content in the same order of memory."""
    shape = layout.is_dense or (layout.shape, layout.strides)
    record = tensor.untyped_storage()._cdata
    return record, tensor.data_ptr(), layout.numel, tensor._version, tensor.dtype, shape


def _nobody(_raw_bytes: int, _kept_bytes: int) -> None:
    """Nobody wants to know what has no stash."""


class Ledger:
    """Counts in bytes, exact at every moment, and the table that finds a storage saved before.

    The table holds weak references: a storage lives as long as autograd holds a handle to it. The lock is re-entrant
    because a collection of garbage may run `drop` at any line, this class's own included. The arena knows its
    stashes; `tell` hears of saved tensors that have none: their bytes in plain training, and those kept here.
    """

    def __init__(self, tell: Callable[[int, int], None] = _nobody) -> None:
        self._tell_arena = tell
        self._told = (0, 0)
        self._lock = threading.RLock()
        self._live: dict[StorageKey, weakref.ref[Stored]] = {}
        self.raw_bytes = 0
        self.stored_bytes = 0
        self.passed_bytes = 0
        self.peak_raw_bytes = 0
        self.peak_stored_bytes = 0
        self.step_raw_bytes = 0
        self.step_fixed_bytes = 0
        self._step_peak_bytes = 0
        self._step_kept_bytes = 0
        self._step_fixed_bytes = 0
        self.num_packs = 0
        self.num_coded = 0
        self.num_derived = 0
        self.num_shared = 0
        self.num_failures = 0
        self.passed: Counter[str] = Counter()
        self.recent = Recent()
        self.monitor = Monitor()

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
        self._live[key] = weakref.ref(stored)

    def add(self, stored: Stored) -> None:
        with self._lock:
            self.num_coded += stored.stored_bytes > 0
            self.num_derived += stored.stored_bytes == 0
            self.raw_bytes += stored.raw_bytes
            self.stored_bytes += stored.stored_bytes
            if stored.stored_bytes == 0:
                self._tell(stored.raw_bytes, 0)
            self._step_peak_bytes = max(self._step_peak_bytes, self.raw_bytes)
            self.peak_raw_bytes = max(self.peak_raw_bytes, self.raw_bytes)
            self.peak_stored_bytes = max(self.peak_stored_bytes, self.stored_bytes)

    def drop(self, stored: Stored) -> None:
        with self._lock:
            key = stored.key
            if key is not None and (entry := self._live.get(key)) is not None and entry() is None:
                del self._live[key]
            if stored.is_saved:
                self.raw_bytes -= stored.raw_bytes
                self.stored_bytes -= stored.stored_bytes
                if stored.stored_bytes == 0:
                    self._tell(-stored.raw_bytes, 0)

    def begin_step(self) -> None:
        """What the step before held at most becomes step_raw_bytes; what no plan can shrink, step_fixed_bytes."""
        self.step_fixed_bytes = self._step_fixed_bytes
        self.step_raw_bytes = self._step_peak_bytes + self._step_kept_bytes
        self._step_peak_bytes = self.raw_bytes
        self._step_kept_bytes = self._step_fixed_bytes = 0

    def keep(self, reason: str, num_bytes: int, *, is_planned: bool = False) -> None:
        """is_planned: as it is for now, because a plan says so."""
        self.passed[reason] += 1
        self.hold(num_bytes)
        self._step_kept_bytes += num_bytes
        self._step_fixed_bytes += 0 if is_planned else num_bytes

    def hold(self, num_bytes: int) -> None:
        """A tensor of so many bytes is kept as it is; negative: no longer."""
        self.passed_bytes += num_bytes
        if num_bytes:
            self._tell(num_bytes, num_bytes)

    def note_exact(self, stored: Stored | None) -> None:
        """A mask, integers or raw bytes were stored: no width of theirs can be planned."""
        self._step_fixed_bytes += stored.stored_bytes if stored is not None else 0

    def counts(self) -> dict[str, int]:
        return {
            "packs_total": self.num_packs,
            "coded_total": self.num_coded,
            "derived_total": self.num_derived,
            "shared_total": self.num_shared,
            "failures_total": self.num_failures,
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "passed_bytes": self.passed_bytes,
            "peak_raw_bytes": self.peak_raw_bytes,
            "peak_stored_bytes": self.peak_stored_bytes,
            **{f"passed_{reason}_total": count for reason, count in sorted(self.passed.items())},
        }
