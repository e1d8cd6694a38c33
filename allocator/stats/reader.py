"""Reading stats pages and writing commands: pure Python over plain files, whose layout is drawn in stats_page.h.

A reader never blocks the writer: it copies a group and looks at the group's sequence number before and after. It knows
no field by name; the page carries the table. It believes nothing: what a page says of itself is checked against the
file's size once, and files are read, not mapped, so that one that is cut off under us is an error and no bus error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import struct
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from daf.allocator.stats.runtime_dir import pid_namespace, process_start_time, runtime_dir

MAGIC, COMMAND_MAGIC = b"DAFSTATS", b"DAFCMND1"
VERSION = 1
NUM_COMMANDS = 16
MAX_TRIES = 200
MORE_ROWS = 64  # beyond the last slot that was in use, where new ones are looked for at every look
LOOKS_AT_FEW = 16
SILENT_SECONDS = 5.0  # without a heartbeat, after which a process that we cannot look up counts as gone
KEPT_PAGES = 32
KEPT_SECONDS = 24 * 3600.0

_HEADER = struct.Struct("=8sIIQIIQQQQQ")
_SECTION = struct.Struct("=IIII")
_REAL, _WHOLE = struct.Struct("=d"), struct.Struct("=Q")
_FIELD = struct.Struct("=48s16s112sIIII")
_EVENT = struct.Struct("=QQIIQd88s")
_EVENT_HEAD = struct.Struct("=QxxxxxxxxI")
_MAP = struct.Struct("=QQQQQ")
_REQUEST = struct.Struct("=QIIQQ32x")
_OUTCOME = struct.Struct("=QQQQ160s")
_COMMAND_HEADER_BYTES = 64
_COMMAND_PAGE_BYTES = _COMMAND_HEADER_BYTES + NUM_COMMANDS * (_REQUEST.size + _OUTCOME.size)
_MAX_COUNTS = {
    "identity": 1, "fields": 1024, "values": 4096, "columns": 256, "slots": 65536, "kinds": 256, "events": 65536,
    "map": 1,
}  # fmt: skip
_MAX_STRIDE = 1 << 16
_MAX_BITS = 64.0
_SECTIONS = ("identity", "fields", "values", "columns", "slots", "kinds", "events", "map")
_KINDS = ("counter", "gauge")
_OUTCOME_STATES = {1: "applied", 2: "pending", 3: "refused"}

State = Literal["live", "finished", "crashed"]
Value = int | float


class PageError(ValueError):
    """A file that is not a stats page this reader can read."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who published a page."""

    pid: int
    start_time: int
    name: str = ""
    argv: tuple[str, ...] = ()
    job_id: str = ""
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launcher: str = ""
    device: str = "cpu"
    host: str = ""
    launched_by: int = 0
    pod: str = ""
    namespace: str = ""
    pid_namespace: int = 0
    started_at: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Field:
    """One number that a page tells."""

    name: str
    kind: str
    unit: str
    help: str


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One slot: what the engine says of it, and what the arena knows of its stashes."""

    slot_id: int
    name: str = ""
    op: str = ""
    codec: str = ""
    bits: float = 0.0
    importance: float = 0.0
    fidelity: float = 0.0
    raw_bytes: int = 0
    stored_bytes: int = 0
    live_bytes: int = 0
    live_stashes: int = 0
    evictions: int = 0
    evicted_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All values of one moment, and the slot rows."""

    values: dict[str, Value]
    slots: list[SlotRow]
    heartbeat_age_seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; ids count up from 1."""

    id: int
    time_seconds: float
    kind: str
    slot_id: int
    num_bytes: int
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A stretch of an arena's addresses: shares in use, cached, and without memory; they add up to 1."""

    zone: Literal["tensor", "plane"]
    num_bytes: int
    live: float
    cached: float
    decommitted: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command."""

    state: str
    least_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: str
    unit: str
    help: str
    type: int
    offset: int
    num_bytes: int

    def read(self, block: bytes, base: int = 0) -> Any:
        """Return the value of the record that starts at `base`."""
        at = base + self.offset
        if self.type == 2:
            return _text(block[at : at + self.num_bytes])
        return (_REAL if self.type == 1 else _WHOLE).unpack_from(block, at)[0]


@dataclass(frozen=True, slots=True)
class _Section:
    offset: int
    stride: int
    count: int


def _cells(zone: Literal["tensor", "plane"], num_bytes: int, shares: bytes) -> Iterator[Cell]:
    for live, cached in zip(shares[::2], shares[1::2], strict=True):
        yield Cell(zone, num_bytes, live / 255, cached / 255, max(0, 255 - live - cached) / 255)


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _sane(cell: Any) -> Any:
    """Return a row's cell as text, or as a number that can be reckoned with."""
    if isinstance(cell, bytes):
        return _text(cell)
    return cell if math.isfinite(cell) else 0.0


def _writable(said: object) -> str:
    """Return it as text that can be written: JSON's escapes also spell halves of characters."""
    return str(said).encode(errors="replace").decode()


def _sequences(block: bytes, stride: int) -> list[int]:
    """Return the 8 bytes that each record starts with, as numbers."""
    if stride % 8:
        raise PageError(f"records of {stride} bytes are not aligned")
    return memoryview(block)[: len(block) // 8 * 8].cast("Q")[:: stride // 8].tolist()


def _identity(said: dict[str, Any], pid: int, start_time: int) -> Identity:
    """Return what a process says of itself, each part made what it should be."""

    def text(name: str) -> str:
        return _writable(said.get(name, ""))[:200]

    def number(name: str, default: int) -> int:
        return max(-1, min(int(said.get(name, default)), 2**31))

    started_at = float(said.get("started_at", 0.0))
    return Identity(
        pid=pid,
        start_time=start_time,
        argv=tuple(_writable(part) for part in said.get("argv", ())),
        started_at=started_at if abs(started_at) < 1e12 else 0.0,
        versions={_writable(name): _writable(version) for name, version in dict(said.get("versions", {})).items()},
        name=text("name"),
        job_id=text("job_id"),
        device=text("device") or "cpu",
        host=text("host"),
        launched_by=number("launched_by", 0),
        pod=text("pod"),
        namespace=text("namespace"),
        launcher=text("launcher"),
        pid_namespace=max(0, int(said.get("pid_namespace", 0))),
        local_world_size=number("local_world_size", 1),
        rank=number("rank", 0),
        local_rank=number("local_rank", 0),
        world_size=number("world_size", 1),
    )


class StatsPage:
    """One page, open for reading. It stays readable after its process has died or its file is gone."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            self._read_tables()
        except BaseException:
            self.close()
            raise

    def _read_tables(self) -> None:
        num_bytes = os.fstat(self._file).st_size
        header = self._check_header(num_bytes)
        self._pid, self._start_time, self._opened_ns = header[5], header[6], header[7]
        places = _SECTION.iter_unpack(self._read(_HEADER.size, _SECTION.size * len(_SECTIONS)))
        self._sections = {name: _Section(*place[:3]) for name, place in zip(_SECTIONS, places, strict=True)}
        for name, section in self._sections.items():
            self._check_section(name, section, num_bytes)
        self._fields = self._read_columns("fields")
        self._row_names, self._row_cells = self._row_layout()
        self._rows: dict[int, tuple[int, SlotRow]] = {}
        self._num_looks, self._num_rows = 0, MORE_ROWS
        self._kinds = [_text(raw) for raw in self._records("kinds")]
        self.fields = [Field(it.name, it.kind, it.unit, it.help) for it in self._fields]
        self.identity = self._read_identity()

    def _check_header(self, num_bytes: int) -> tuple[Any, ...]:
        if num_bytes < 4096 or self._read(0, 8) != MAGIC:
            raise PageError(f"{self.path} is not a stats page")
        header = self._header()
        if header[1] != VERSION:
            raise PageError(f"{self.path} has layout version {header[1]}; this reader knows {VERSION}")
        if header[3] > num_bytes:
            raise PageError(f"{self.path} is cut off")
        return header

    def _check_section(self, name: str, section: _Section, num_bytes: int) -> None:
        least = {"fields": _FIELD.size, "columns": _FIELD.size, "events": _EVENT.size, "map": _MAP.size}.get(name, 8)
        fits = section.offset + section.stride * section.count <= num_bytes
        if not (1 <= section.count <= _MAX_COUNTS[name] and least <= section.stride <= _MAX_STRIDE and fits):
            raise PageError(f"{self.path}: its section {name} makes no sense")

    def _header(self) -> tuple[Any, ...]:
        return _HEADER.unpack(self._read(0, _HEADER.size))

    def _read(self, offset: int, num_bytes: int) -> bytes:
        found = os.pread(self._file, num_bytes, offset)
        if len(found) != num_bytes:
            raise PageError(f"{self.path} is cut off")
        return found

    def _records(self, name: str) -> Iterator[bytes]:
        section = self._sections[name]
        block = self._read(section.offset, section.stride * section.count)
        for i in range(section.count):
            yield block[i * section.stride : (i + 1) * section.stride]

    def _read_columns(self, name: str) -> list[_Column]:
        holder = self._sections["values" if name == "fields" else "slots"]
        room = holder.stride * (holder.count if name == "fields" else 1)
        found = []
        for raw in self._records(name):
            label, unit, help_text, kind, kind_of_value, offset, num_bytes = _FIELD.unpack_from(raw)
            if kind >= len(_KINDS) or num_bytes < (1 if kind_of_value == 2 else 8) or offset + num_bytes > room:
                raise PageError(f"{self.path}: its field {_text(label)!r} makes no sense")
            found.append(
                _Column(_text(label), _KINDS[kind], _text(unit), _text(help_text), kind_of_value, offset, num_bytes)
            )
        return found

    def _row_layout(self) -> tuple[list[str], struct.Struct]:
        """Return the columns that a SlotRow has, in the order of a record, and how to take them from it in one go."""
        types = {it.name: it.type for it in dataclasses.fields(SlotRow) if it.name != "slot_id"}
        known = [it for it in self._read_columns("columns") if it.name in types]
        known.sort(key=lambda it: it.offset)
        form, at = "=", 0
        for column in known:
            if column.offset < at or (column.type == 2) != (types[column.name] == "str"):
                raise PageError(f"{self.path}: its column {column.name!r} makes no sense")
            size = column.num_bytes if column.type == 2 else 8
            form += f"{column.offset - at}x" + {1: "d", 2: f"{size}s"}.get(column.type, "Q")
            at = column.offset + size
        return [column.name for column in known], struct.Struct(form)

    def _read_identity(self) -> Identity:
        try:
            said = json.loads(_text(next(self._records("identity"))) or "{}")
            return _identity(said, self._pid, self._start_time)
        except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            raise PageError(f"{self.path}: its identity makes no sense: {error}") from None

    def _stable(self, offset: int, num_bytes: int) -> bytes:
        """Copy a group whose sequence number stands at its start."""
        for attempt in range(MAX_TRIES):
            before = self._read(offset, 8)
            group = self._read(offset, num_bytes)
            if before[0] % 2 == 0 and before == group[:8] == self._read(offset, 8):
                return group
            if attempt > 10:
                time.sleep(0.0001)
        if self.state() != "live":
            return group  # killed while it wrote: no better will come, and most of it is true
        raise PageError(f"{self.path}: its writer stands still in the middle of a group")

    def state(self) -> State:
        """Return whether the process lives, has finished, or is gone without saying so."""
        if self._header()[4] == 2:
            return "finished"
        if self.is_foreign:
            return "live" if self.heartbeat_age_seconds < SILENT_SECONDS else "crashed"
        return "live" if process_start_time(self._pid) == self._start_time else "crashed"

    @property
    def is_foreign(self) -> bool:
        """Whether the process is in another pid namespace, a container beside ours: its pid tells us nothing.

        Then it lives while its heart beats, 40 times a second; one that was only stopped comes back.
        """
        return self.identity.pid_namespace not in (0, pid_namespace())

    @property
    def heartbeat_age_seconds(self) -> float:
        """Seconds since the process last published; for a page of before the last boot, since its file was written."""
        heartbeat_ns = self._header()[8]
        age = (time.monotonic_ns() - heartbeat_ns) / 1e9
        return age if age >= 0 else max(0.0, time.time() - os.fstat(self._file).st_mtime)

    @property
    def closed_at(self) -> float | None:
        """When the arena was closed, as seconds since 1970; None while it is open or after a crash."""
        closed_ns = self._header()[9]
        return closed_ns / 1e9 if closed_ns else None

    def values(self) -> dict[str, Value]:
        """Return every field's value, all of one moment."""
        section = self._sections["values"]
        group = self._stable(section.offset, section.stride * section.count)
        return {it.name: it.read(group) for it in self._fields}

    def slots(self) -> list[SlotRow]:
        """Return the rows in use; each is of one moment. One that is being written all the time is left out."""
        section = self._sections["slots"]
        # Slots are numbered from 0 on, and most pages have few: all rows are looked at now and then.
        self._num_looks += 1
        num_rows = section.count if self._num_looks % LOOKS_AT_FEW == 1 else self._num_rows
        before = self._read(section.offset, section.stride * min(section.count, num_rows))
        used = [i for i, sequence in enumerate(_sequences(before, section.stride)) if sequence]
        if not used:
            return []
        self._num_rows = used[-1] + 1 + MORE_ROWS
        num_bytes = (used[-1] + 1) * section.stride
        for _ in range(3):
            block, after = self._read(section.offset, num_bytes), self._read(section.offset, num_bytes)
            seen = zip(*(_sequences(copy, section.stride) for copy in (before, block, after)), strict=False)
            whole = [first == second == third and first % 2 == 0 for first, second, third in seen]
            if all(whole[i] for i in used) or self.state() != "live":
                break
            before = after
        keeps_all = self.state() != "live"
        sequences = _sequences(block, section.stride)
        return [self._row(i, sequences[i], block) for i in used if keeps_all or whole[i]]

    def _row(self, slot_id: int, sequence: int, block: bytes) -> SlotRow:
        """Return the row, or the one that was made of it before where it has not been written since."""
        known = self._rows.get(slot_id)
        if known is None or known[0] != sequence:
            cells = self._row_cells.unpack_from(block, slot_id * self._sections["slots"].stride)
            named: dict[str, Any] = dict(zip(self._row_names, map(_sane, cells), strict=True))
            named["bits"] = max(0.0, min(named.get("bits", 0.0), _MAX_BITS))  # loops run over bits
            known = self._rows[slot_id] = sequence, SlotRow(slot_id, **named)
        return known[1]

    def snapshot(self) -> Snapshot:
        """Return values, slot rows and the age of the heartbeat."""
        return Snapshot(self.values(), self.slots(), self.heartbeat_age_seconds)

    def last_event_id(self) -> int:
        """Return the id of the newest event; 0: none yet."""
        return int(self._header()[10])

    def events(self, since_id: int = 0, skip: Collection[str] = ()) -> tuple[list[Event], int]:
        """Return the events after `since_id` that the ring still has, oldest first, and how many it has lost.

        Kinds in `skip` are passed over without being decoded: blocks come and go thousands of times a second.
        """
        last = self.last_event_id()
        first = max(since_id + 1, last - self._sections["events"].count + 1)
        skipped = {i for i, name in enumerate(self._kinds) if name in skip}
        records, ids, found, num_torn = self._ring(first, last), self._ring(first, last), [], 0
        stride = self._sections["events"].stride
        for event_id, at in zip(range(first, last + 1), range(0, len(records), stride), strict=False):
            if _EVENT_HEAD.unpack_from(records, at)[1] in skipped:
                continue
            got, wall_ns, kind, slot_id, num_bytes, value, text = _EVENT.unpack_from(records, at)
            if got != event_id or _WHOLE.unpack_from(ids, at)[0] != event_id:
                num_torn += 1
                continue
            name = self._kinds[kind] if kind < len(self._kinds) else str(kind)
            found.append(Event(event_id, wall_ns / 1e9, name, slot_id, num_bytes, value, _text(text)))
        return found, max(0, first - since_id - 1) + num_torn

    def _ring(self, first: int, last: int) -> bytes:
        """Copy the records of the events `first` to `last`, which lie in one stretch of the ring or in two."""
        section, num = self._sections["events"], max(0, last - first + 1)
        start = (first - 1) % section.count
        before_end = min(num, section.count - start)
        head = self._read(section.offset + start * section.stride, before_end * section.stride)
        return head + self._read(section.offset, (num - before_end) * section.stride)

    def map(self) -> list[Cell]:
        """Return what the arena's addresses hold, tensor zone first, lowest address first."""
        section = self._sections["map"]
        record = self._stable(section.offset, section.stride)
        _, tensor_bytes, plane_bytes, num_tensor, num_plane = _MAP.unpack_from(record)
        room = (section.stride - _MAP.size) // 4
        tensors = record[_MAP.size : _MAP.size + 2 * min(num_tensor, room)]
        planes = record[_MAP.size + 2 * room : _MAP.size + 2 * room + 2 * min(num_plane, room)]
        return [*_cells("tensor", tensor_bytes, tensors), *_cells("plane", plane_bytes, planes)]

    @property
    def command_path(self) -> pathlib.Path:
        """The command page beside this page."""
        return self.path.with_suffix(".cmd")

    def request_budget(self, num_bytes: int) -> int:
        """Ask for a budget; returns the generation to ask the outcome of."""
        return self._request(1, num_bytes)

    def request_pause(self, is_paused: bool) -> int:
        """Ask to pause or resume compression; returns the generation."""
        return self._request(2, int(is_paused))

    def request_profile(self) -> int:
        """Ask for an allocation profile, begun if there is none yet; returns the generation."""
        return self._request(3, 0)

    def request_budget_at(self, num_bytes: int, step: int) -> int:
        """Ask for a budget as soon as so many steps are done; returns the generation."""
        return self._request(4, num_bytes, step)

    def request_cancel(self, generation: int) -> int:
        """Take back a budget that waits for its step; returns the generation of this request."""
        return self._request(5, generation)

    def _request(self, kind: int, value: int, step: int = 0) -> int:
        if self.state() != "live":
            raise ProcessLookupError(f"process {self._pid} has ended: nobody would read the command")
        with self._command_page() as file:
            requested, done = struct.unpack("=QQ", os.pread(file, 16, 16))
            if requested - done >= NUM_COMMANDS:
                raise BlockingIOError(f"{requested - done} commands wait already for process {self._pid} to take them")
            generation = requested + 1
            check = ((generation * 31 + kind) * 31 + value + step * 37) % 2**32
            offset = _COMMAND_HEADER_BYTES + generation % NUM_COMMANDS * _REQUEST.size
            os.pwrite(file, _REQUEST.pack(generation, kind, check, value, step), offset)
            os.pwrite(file, _WHOLE.pack(generation), 16)  # last: it announces the request
        return int(generation)

    @contextlib.contextmanager
    def _command_page(self, flags: int = os.O_RDWR) -> Iterator[int]:
        file = os.open(self.command_path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(file).st_size < _COMMAND_PAGE_BYTES or os.pread(file, 8, 0) != COMMAND_MAGIC:
                raise PageError(f"{self.command_path} is not a command page")
            if flags == os.O_RDWR:
                _lock(file)
            yield file
        finally:
            os.close(file)

    def outcome(self, generation: int) -> Outcome | None:
        """Return what became of a command; None while it is not dealt with, or long forgotten."""
        offset = _COMMAND_HEADER_BYTES + NUM_COMMANDS * _REQUEST.size + generation % NUM_COMMANDS * _OUTCOME.size
        with self._command_page(os.O_RDONLY) as file:
            for _ in range(MAX_TRIES):
                raw, again = os.pread(file, _OUTCOME.size, offset), os.pread(file, _OUTCOME.size, offset)
                sequence, got, state, least_bytes, reason = _OUTCOME.unpack(raw)
                if sequence % 2 == 0 and raw == again:
                    known = _OUTCOME_STATES.get(state, "pending")
                    return Outcome(known, least_bytes, _text(reason)) if got == generation else None
        return None

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # one that never opened
            self.close()


def _lock(file: int) -> None:
    """Take the lock of watchers. Each holds it for microseconds: one that does not let go is broken."""
    for _ in range(100):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.001)
    raise BlockingIOError("another watcher holds the command page")


def discover(folder: pathlib.Path | None = None) -> list[StatsPage]:
    """Return the pages of this user's processes, oldest first; what cannot be read is left out."""
    folder = runtime_dir() if folder is None else folder
    pages = []
    for path in folder.glob("*.stats") if folder.is_dir() else ():
        with contextlib.suppress(OSError, PageError, json.JSONDecodeError):
            pages.append(StatsPage(path))
    return sorted(pages, key=lambda page: (page._opened_ns, page.path.name))


def clean_stale(
    folder: pathlib.Path | None = None, *, kept_pages: int = KEPT_PAGES, kept_seconds: float = KEPT_SECONDS
) -> int:
    """Remove pages of ended processes, but for the newest few of the last day; returns how many went."""
    ended = [page for page in discover(folder) if page.state() != "live"]
    ended.sort(key=lambda page: page.path.stat().st_mtime if page.path.exists() else 0.0, reverse=True)
    num_removed = 0
    for i, page in enumerate(ended):
        with contextlib.suppress(OSError):
            if i >= kept_pages or time.time() - page.path.stat().st_mtime > kept_seconds:
                page.path.unlink()
                page.command_path.unlink(missing_ok=True)
                for suffix in (".end", ".oom.json"):
                    page.path.with_suffix(suffix).unlink(missing_ok=True)
                num_removed += 1
        page.close()
    return num_removed
