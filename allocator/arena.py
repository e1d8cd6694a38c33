"""The arena, as Python sees it: owns the C object, turns status into exceptions, keeps raw pointers as integers."""

from __future__ import annotations

import atexit
import errno
import os
import resource
import struct
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from daf.allocator import out_of_memory, pressure
from daf.allocator._native import ffi, lib
from daf.allocator.stats import reader, runtime_dir
from daf.errors import DafError, DafOutOfMemoryError
from daf.sizes import format_bytes

MAX_STREAMS = int(lib.DAF_MAX_STREAMS)
DEFAULT_PAGE_BYTES = int(lib.DAF_DEFAULT_PAGE_BYTES)
REPORT_BYTES = 4096
_EVENT_KINDS = {ffi.string(lib.daf_event_kind(i)).decode(): i for i in range(lib.daf_event_num_kinds())}
_NUM_FIELDS = int(lib.daf_stats_num_fields())
_FIELDS = [lib.daf_stats_fields()[i] for i in range(_NUM_FIELDS)]
_FIELD_NAMES = [ffi.string(field.name).decode() for field in _FIELDS]
_CELLS = struct.Struct("=" + "".join("d" if field.type == 1 else "Q" for field in _FIELDS))

_TOLD = {
    name: getattr(lib, f"DAF_TOLD_{name.upper()}")
    for name in (
        "parameter_bytes", "gradient_bytes", "optimizer_bytes", "expected_error", "measured_error",
        "overhead_seconds",
    )
}  # fmt: skip

_reserve = lib.daf_stash_reserve
_pin = lib.daf_stash_pin
_unpin = lib.daf_stash_unpin
_release = lib.daf_stash_release


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a budget: in force, in force but not reached yet, or refused."""

    state: Literal["applied", "pending", "refused"]
    least_bytes: int
    reason: str


_OUTCOME_STATES: dict[int, Literal["applied", "pending", "refused"]] = {1: "applied", 2: "pending", 3: "refused"}


class StashSpec:
    """The layout and importance of a kind of stash, as a C struct that is made once and reserved from many times."""

    __slots__ = ("raw", "stored_bytes")

    def __init__(self, stream_bytes: Sequence[int], importance: Sequence[float], floor_streams: int = 1) -> None:
        num_streams = len(stream_bytes)
        if not 1 <= num_streams <= MAX_STREAMS:
            raise ValueError(f"{num_streams} streams; a stash has 1 to {MAX_STREAMS}")
        if len(importance) != num_streams:
            raise ValueError(f"{len(importance)} importances for {num_streams} streams; one each is needed")
        if not 1 <= floor_streams <= MAX_STREAMS:
            raise ValueError(f"floor_streams={floor_streams}; it is 1 to {MAX_STREAMS}: stream 0 is never dropped")
        self.raw = ffi.new("daf_stash_spec_t *")
        self.raw.num_streams = num_streams
        self.raw.floor_streams = floor_streams
        for i in range(num_streams):
            self.raw.stream_bytes[i] = stream_bytes[i]
            self.raw.importance[i] = importance[i]
        self.stored_bytes = sum(stream_bytes)

    def paged_bytes(self, page_bytes: int) -> int:
        """Return what the streams take on pages of that size."""
        counts = (self.raw.stream_bytes[i] for i in range(self.raw.num_streams))
        return sum(-(-int(num_bytes) // page_bytes) * page_bytes for num_bytes in counts)


class Stash:
    """One encoded activation. Pinned when reserved; what it holds may shrink whenever it is not pinned."""

    __slots__ = ("_address", "_arena", "_home", "_raw")

    def __init__(self, arena: Arena, raw: Any) -> None:
        self._arena = arena
        self._home = arena._raw  # outlives a closed `arena`: the C arena goes with its last tensor or stash
        self._raw = raw
        self._address = int(ffi.cast("uintptr_t", lib.daf_stash_view(raw)))

    @property
    def planes(self) -> int:
        """The address of the view that coders take. Its content may be read while the stash is pinned."""
        return self._address

    @property
    def num_streams(self) -> int:
        """The number of live streams; final only while pinned."""
        return int(lib.daf_stash_view(self._raw).num_streams)

    def pin(self) -> int:
        """Keep everything that is left from being dropped; returns the number of live streams."""
        status = _pin(self._home, self._raw)
        if status:
            self._arena._fail(status, "a stash that was spilled", int(lib.daf_stash_bytes(self._home, self._raw)))
        return int(lib.daf_stash_view(self._raw).num_streams)

    def unpin(self) -> None:
        """Let eviction have it again."""
        status = _unpin(self._home, self._raw)
        if status:
            raise DafError("unpin() without a pin")

    def release(self) -> None:
        """Give all pages back. May be called again, to no effect."""
        raw, self._raw = self._raw, None
        if raw is not None:
            _release(self._home, raw)

    def set_importance(self, importance: Sequence[float]) -> None:
        """Say anew what losing each live stream would cost."""
        values = [*importance, *([0.0] * (MAX_STREAMS - len(importance)))]
        lib.daf_stash_set_importance(self._home, self._raw, values)

    def __del__(self) -> None:
        self.release()


class Arena:
    """One budget for tensors and stashes. Any thread may call any method but `close`."""

    def __init__(
        self,
        budget_bytes: int,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        publish: bool = True,
        name: str = "",
        *,
        spill_dir: str | os.PathLike[str] | None = None,
        reserve_bytes: int = 0,
        backend: int = 0,
    ) -> None:
        if budget_bytes < lib.DAF_MIN_BUDGET_BYTES:
            raise ValueError(f"budget_bytes={budget_bytes}; an arena has at least {lib.DAF_MIN_BUDGET_BYTES}")
        if page_bytes < lib.DAF_MIN_PAGE_BYTES or page_bytes & (page_bytes - 1):
            raise ValueError(f"page_bytes={page_bytes}; it is a power of two, {lib.DAF_MIN_PAGE_BYTES} or more")
        self._raw: Any = None
        spill = ffi.new("char[]", os.fsencode(spill_dir)) if spill_dir is not None else ffi.NULL
        config = ffi.new("daf_arena_config_t *")
        config.budget_bytes = budget_bytes
        config.reserve_bytes = reserve_bytes
        config.backend = ffi.cast("daf_backend_t *", backend)
        config.spill_dir = spill
        config.page_bytes = page_bytes
        out = ffi.new("daf_arena_t **")
        status = lib.daf_arena_open(config, out)
        if status:
            detail = _system_words() if status == lib.DAF_SYSTEM else "the backend does not take this page size"
            raise DafError(f"an arena of {format_bytes(budget_bytes)} cannot be opened: {detail}")
        self._take(out[0], _close)
        if publish:
            self._publish(name)

    @classmethod
    def of(cls, address: int, *, name: str = "", device: str = "cpu") -> Self:
        """Speak for an arena that C opened and goes on serving torch from: publish it, leave it open at the end."""
        arena = cls.__new__(cls)
        arena._take(ffi.cast("daf_arena_t *", address), lib.daf_arena_unpublish)
        arena._publish(name, device)
        return arena

    def _take(self, raw: Any, at_exit: Callable[[Any], None]) -> None:
        self._raw = raw
        self.page_bytes = int(lib.daf_arena_page_bytes(raw))
        self._at_exit = weakref.finalize(self, _end, raw, at_exit)
        out_of_memory.watch(self)
        atexit.register(self._at_exit)

    def _publish(self, name: str, device: str = "cpu") -> None:
        try:
            folder = runtime_dir.make_runtime_dir()
            reader.clean_stale(folder)
            identity = runtime_dir.make_identity(name, device).encode()
            status = lib.daf_arena_publish(self._raw, os.fsencode(folder), identity)
            if status:
                raise OSError(ffi.errno, os.strerror(ffi.errno), str(folder))
        except OSError as error:
            warnings.warn(f"DAF goes on without a stats page: {error}", RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """End publishing. Tensors and stashes that live on keep their memory until they are freed."""
        raw, self._raw = self._raw, None
        if raw is not None:
            atexit.unregister(self._at_exit)
            self._at_exit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> int:
        """The C object, for the front doors."""
        return int(ffi.cast("uintptr_t", self._open()))

    @property
    def page_path(self) -> str:
        """The stats page's file; empty when nothing is published."""
        return os.fsdecode(ffi.string(lib.daf_arena_page_path(self._open())))

    def stash_spec(self, stream_bytes: Sequence[int], importance: Sequence[float], floor_streams: int = 1) -> StashSpec:
        """Describe a kind of stash. `importance[s]`: the cost of losing stream s; the arena divides by its bytes."""
        return StashSpec(stream_bytes, importance, floor_streams)

    def reserve(self, spec: StashSpec, slot_id: int = 0, raw_bytes: int = 0) -> Stash:
        """Return a pinned stash; less important planes of others may go for it."""
        out = ffi.new("daf_stash_t **")
        status = _reserve(self._raw or self._open(), spec.raw, slot_id, raw_bytes, out)
        if status:
            self._fail(status, "a stash", spec.paged_bytes(self.page_bytes))
        return Stash(self, out[0])

    def alloc(self, num_bytes: int) -> int:
        """Return the address of a block of the tensor zone, aligned to 64 bytes."""
        out = ffi.new("void **")
        status = lib.daf_arena_alloc(self._open(), num_bytes, out)
        if status:
            self._fail(status, "a tensor", num_bytes)
        return int(ffi.cast("uintptr_t", out[0]))

    def free(self, pointer: int) -> None:
        """Take a block back."""
        if lib.daf_arena_free(self._open(), ffi.cast("void *", pointer)):
            raise ValueError(f"{pointer:#x} is not a live block of this arena")

    def block_bytes(self, pointer: int) -> int:
        """Return the usable size of a live block; 0 for any other address."""
        return int(lib.daf_arena_block_bytes(self._open(), ffi.cast("void *", pointer)))

    def owns(self, pointer: int) -> bool:
        """Return whether the address lies in this arena's tensor zone."""
        return bool(lib.daf_arena_owns(self._open(), ffi.cast("void *", pointer)))

    def set_budget(self, num_bytes: int, *, force: bool = False) -> Outcome:
        """Change the budget; refused when the last step could not have run in it, unless forced."""
        outcome = ffi.new("daf_outcome_t *")
        lib.daf_arena_set_budget(self._open(), num_bytes, force, outcome)
        reason = ffi.string(outcome.reason).decode()
        return Outcome(_OUTCOME_STATES[outcome.state], int(outcome.least_bytes), reason)

    def set_pressure(self, callback: Callable[[int], bool] | None) -> None:
        """Have `callback` asked when a request does not fit once cached memory is used, before planes are dropped.

        It gets the bytes that are missing and returns whether it may have freed some; then the request is tried again,
        and the callback asked again while bytes are missing. It runs in the thread that asked for memory, maybe in the
        middle of a torch op, maybe in several threads at once. Requests that it makes itself do not ask again. Its
        exceptions are said once and count as False. None: nobody is asked.
        """
        pressure.set_callback(self._open(), callback)

    def want_half(self, is_wanted: bool) -> None:
        """Have the callback called once with 0, as soon as a tensor makes more than half of the budget live."""
        lib.daf_arena_want_half(self._open(), is_wanted)

    def trim(self, max_bytes: int = 2**63) -> int:
        """Give cached memory back to the system; returns how many bytes."""
        return int(lib.daf_arena_trim(self._open(), max_bytes))

    def evict(self, max_count: int = 1) -> int:
        """Drop up to so many planes, least important first; returns how many went."""
        return int(lib.daf_arena_evict(self._open(), max_count))

    @property
    def num_profiles_asked(self) -> int:
        """How often a watcher asked for an allocation profile."""
        return int(lib.daf_arena_profiles_asked(self._raw)) if self._raw is not None else 0

    @property
    def paused(self) -> bool:
        """Whether a command has paused compression."""
        return bool(lib.daf_arena_is_paused(self._raw)) if self._raw is not None else False

    @paused.setter
    def paused(self, value: bool) -> None:
        lib.daf_arena_set_paused(self._open(), value)

    def stats(self) -> dict[str, int | float]:
        """Return every number the page shows, as of now."""
        cells = ffi.new("uint64_t[]", _NUM_FIELDS)
        lib.daf_arena_stats(self._open(), cells)
        return dict(zip(_FIELD_NAMES, _CELLS.unpack(ffi.buffer(cells)), strict=True))

    def reset_peaks(self) -> None:
        """Start the peaks anew from what is held now."""
        lib.daf_arena_reset_peaks(self._open())

    def is_valid(self) -> bool:
        """Walk every structure and compare it with every counter."""
        return self.why_invalid() == ""

    def why_invalid(self) -> str:
        """Return the first difference that a full walk finds; empty when all agree."""
        why = ffi.new("char[]", 256)
        return "" if lib.daf_arena_is_valid(self._open(), why, 256) else str(ffi.string(why).decode())

    def report(self, num_bytes: int = 0) -> str:
        """Return who holds what, and which budget would hold `num_bytes` more."""
        text = ffi.new("char[]", REPORT_BYTES)
        lib.daf_arena_report(self._open(), num_bytes, text, REPORT_BYTES)
        return str(ffi.string(text).decode(errors="replace"))

    def event(self, kind: str, *, slot_id: int = 0, num_bytes: int = 0, value: float = 0.0, text: str = "") -> None:
        """Put an event on the ring."""
        if kind not in _EVENT_KINDS:
            raise ValueError(f"{kind!r} is not one of {', '.join(_EVENT_KINDS)}")
        lib.daf_arena_event(self._open(), _EVENT_KINDS[kind], slot_id, num_bytes, value, text.encode())

    def slot(
        self,
        slot_id: int,
        *,
        name: str = "",
        op: str = "",
        codec: str = "",
        bits: float = 0.0,
        raw_bytes: int = 0,
        stored_bytes: int = 0,
        importance: float = 0.0,
        fidelity: float = 0.0,
    ) -> None:
        """Write a slot's row on the stats page. Empty texts leave what stands there."""
        texts = [ffi.new("char[]", text.encode()) if text else ffi.NULL for text in (name, op, codec)]
        row = ffi.new("daf_slot_row_t *")
        row.name, row.op, row.codec = texts
        row.bits, row.importance, row.fidelity = bits, importance, fidelity
        row.raw_bytes, row.stored_bytes = raw_bytes, stored_bytes
        lib.daf_arena_slot(self._open(), slot_id, row)

    def count_saved(self, raw_bytes: int, kept_bytes: int) -> None:
        """Count saved tensors without a stash in, or out (negative): plain training's bytes for them, and ours."""
        if self._raw:
            lib.daf_arena_count_saved(self._raw, raw_bytes, kept_bytes)

    def tell(self, **numbers: float) -> None:
        """Show numbers that only the engine knows: parameter_bytes, expected_error, ... of `daf_told_t`."""
        for name, value in numbers.items():
            lib.daf_arena_tell(self._open(), _TOLD[name], value)

    def step(self, seconds: float) -> None:
        """Say that a training step has ended."""
        lib.daf_arena_step(self._open(), seconds)

    def flush(self) -> None:
        """Publish and apply commands now instead of at the next heartbeat."""
        lib.daf_arena_flush(self._open())

    def _open(self) -> Any:
        if self._raw is None:
            raise DafError("the arena is closed")
        return self._raw

    def _explain(self, num_bytes: int) -> str:
        text = ffi.new("char[]", REPORT_BYTES)
        lib.daf_arena_explain(self._open(), num_bytes, text, REPORT_BYTES)
        return str(ffi.string(text).decode(errors="replace"))

    def _fail(self, status: int, what: str, num_bytes: int) -> None:
        """Raise what `status` means."""
        if status == lib.DAF_OUT_OF_MEMORY:
            raise DafOutOfMemoryError(self._explain(num_bytes))
        if status == lib.DAF_SYSTEM:
            raise DafError(f"the system has no {format_bytes(num_bytes)} for {what}: {os.strerror(ffi.errno)}")
        raise DafError(f"{what} of {num_bytes} bytes: invalid, or the arena is closed")


def _system_words() -> str:
    """Return what the system said, and the limit of ours that is behind it where there is one."""
    words = os.strerror(ffi.errno)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if ffi.errno != errno.ENOMEM or limit == resource.RLIM_INFINITY:
        return words
    return f"{words}: `ulimit -v` allows {format_bytes(limit)} of addresses, and DAF reserves more than it fills"


def _end(raw: Any, at_exit: Callable[[Any], None]) -> None:
    pressure.set_callback(raw, None)
    at_exit(raw)


def _close(raw: Any) -> None:
    lib.daf_door_retire(raw)
    lib.daf_arena_close(raw)
