"""Reading stats pages and writing commands: pure Python over a memory-mapped file, whose layout is drawn in page.h.

A reader never blocks the writer: it copies a group and looks at the group's sequence number before and after. It knows
no field by name; the page carries the table.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import pathlib
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from daf.allocator.runtime import process_start_time, runtime_dir

MAGIC, COMMAND_MAGIC = b"DAFSTATS", b"DAFCMND1"
VERSION = 1
NUM_COMMANDS = 16
MAX_TRIES = 10_000
KEPT_PAGES = 32
KEPT_SECONDS = 24 * 3600.0

_HEADER = struct.Struct("=8sIIQIIQQQQQ")
_SECTION = struct.Struct("=IIII")
_FIELD = struct.Struct("=48s16s112sIIII")
_EVENT = struct.Struct("=QQIIQd88s")
_MAP = struct.Struct("=QQQQQ")
_REQUEST = struct.Struct("=QIIQ40x")
_OUTCOME = struct.Struct("=QQQQ160s")
_COMMAND_HEADER_BYTES = 64
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
    device: str = "cpu"
    host: str = ""
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

    def read(self, record: bytes) -> Any:
        if self.type == 2:
            return _text(record[self.offset : self.offset + self.num_bytes])
        return struct.unpack_from("=d" if self.type == 1 else "=Q", record, self.offset)[0]


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


class StatsPage:
    """One page, mapped read-only. It stays readable after its process has died or its file is gone."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        try:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise PageError(f"{self.path} is empty") from error
        header = self._check_header()
        self._pid, self._start_time, self._opened_ns = header[5], header[6], header[7]
        places = (_SECTION.unpack_from(self._map, _HEADER.size + i * _SECTION.size) for i in range(len(_SECTIONS)))
        self._sections = {name: _Section(*place[:3]) for name, place in zip(_SECTIONS, places, strict=True)}
        self._fields = self._read_columns("fields")
        self._columns = self._read_columns("columns")
        self._kinds = [_text(raw) for raw in self._records("kinds")]
        self.fields = [Field(it.name, it.kind, it.unit, it.help) for it in self._fields]
        self.identity = self._read_identity()

    def _check_header(self) -> tuple[Any, ...]:
        if len(self._map) < 4096 or self._map[:8] != MAGIC:
            raise PageError(f"{self.path} is not a stats page")
        header = _HEADER.unpack_from(self._map)
        if header[1] != VERSION:
            raise PageError(f"{self.path} has layout version {header[1]}; this reader knows {VERSION}")
        if header[3] > len(self._map):
            raise PageError(f"{self.path} is cut off")
        return header

    def _records(self, name: str) -> Iterator[bytes]:
        section = self._sections[name]
        for i in range(section.count):
            yield self._map[section.offset + i * section.stride : section.offset + (i + 1) * section.stride]

    def _read_columns(self, name: str) -> list[_Column]:
        found = []
        for raw in self._records(name):
            label, unit, help_text, kind, kind_of_value, offset, num_bytes = _FIELD.unpack(raw)
            found.append(
                _Column(_text(label), _KINDS[kind], _text(unit), _text(help_text), kind_of_value, offset, num_bytes)
            )
        return found

    def _read_identity(self) -> Identity:
        said = json.loads(_text(next(self._records("identity"))) or "{}")
        known = {name: said[name] for name in Identity.__dataclass_fields__ if name in said}
        known["argv"] = tuple(known.get("argv", ()))
        return Identity(**{**known, "pid": self._pid, "start_time": self._start_time})

    def _cell(self, offset: int) -> int:
        return int.from_bytes(self._map[offset : offset + 8], "little")

    def _stable(self, offset: int, num_bytes: int) -> bytes:
        """Copy a group whose sequence number stands at its start."""
        for attempt in range(MAX_TRIES):
            before = self._cell(offset)
            group = self._map[offset : offset + num_bytes]
            if before % 2 == 0 and self._cell(offset) == before:
                return group
            if attempt > 10:
                time.sleep(0.0001)
        raise PageError(f"{self.path}: its writer died in the middle of a group")

    def state(self) -> State:
        """Return whether the process lives, has finished, or is gone without saying so."""
        if _HEADER.unpack_from(self._map)[4] == 2:
            return "finished"
        return "live" if process_start_time(self._pid) == self._start_time else "crashed"

    @property
    def heartbeat_age_seconds(self) -> float:
        """Seconds since the process last published; for a page of before the last boot, since its file was written."""
        heartbeat_ns = _HEADER.unpack_from(self._map)[8]
        age = (time.monotonic_ns() - heartbeat_ns) / 1e9
        return age if age >= 0 else max(0.0, time.time() - self.path.stat().st_mtime)

    @property
    def closed_at(self) -> float | None:
        """When the arena was closed, as seconds since 1970; None while it is open or after a crash."""
        closed_ns = _HEADER.unpack_from(self._map)[9]
        return closed_ns / 1e9 if closed_ns else None

    def values(self) -> dict[str, Value]:
        """Return every field's value, all of one moment."""
        section = self._sections["values"]
        group = self._stable(section.offset, section.stride * section.count)
        return {it.name: it.read(group) for it in self._fields}

    def slots(self) -> list[SlotRow]:
        """Return the rows in use; each is of one moment."""
        section, rows = self._sections["slots"], []
        known = SlotRow.__dataclass_fields__
        for slot_id in range(section.count):
            offset = section.offset + slot_id * section.stride
            if self._cell(offset) == 0:
                continue
            record = self._stable(offset, section.stride)
            rows.append(SlotRow(slot_id, **{it.name: it.read(record) for it in self._columns if it.name in known}))
        return rows

    def snapshot(self) -> Snapshot:
        """Return values, slot rows and the age of the heartbeat."""
        return Snapshot(self.values(), self.slots(), self.heartbeat_age_seconds)

    def last_event_id(self) -> int:
        """Return the id of the newest event; 0: none yet."""
        return int(_HEADER.unpack_from(self._map)[10])

    def events(self, since_id: int = 0) -> tuple[list[Event], int]:
        """Return the events after `since_id` that the ring still has, oldest first, and how many it has lost."""
        section, last = self._sections["events"], self.last_event_id()
        first = max(since_id + 1, last - section.count + 1)
        found = []
        for event_id in range(first, last + 1):
            offset = section.offset + (event_id - 1) % section.count * section.stride
            got, wall_ns, kind, slot_id, num_bytes, value, text = _EVENT.unpack_from(self._map, offset)
            if got != event_id or self._cell(offset) != event_id:
                continue
            name = self._kinds[kind] if kind < len(self._kinds) else str(kind)
            found.append(Event(event_id, wall_ns / 1e9, name, slot_id, num_bytes, value, _text(text)))
        return found, max(0, last - since_id - len(found))

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

    def _request(self, kind: int, value: int) -> int:
        if self.state() != "live":
            raise ProcessLookupError(f"process {self._pid} has ended: nobody would read the command")
        with self._command_page() as page:
            numbers = memoryview(page).cast("Q")
            generation = numbers[2] + 1
            check = ((generation * 31 + kind) * 31 + value) % 2**32
            offset = _COMMAND_HEADER_BYTES + generation % NUM_COMMANDS * _REQUEST.size
            page[offset : offset + _REQUEST.size] = _REQUEST.pack(generation, kind, check, value)
            numbers[2] = generation  # one 8-byte store, after the request it announces
            numbers.release()
        return generation

    @contextlib.contextmanager
    def _command_page(self) -> Iterator[mmap.mmap]:
        with self.command_path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with mmap.mmap(file.fileno(), 0) as page:
                if page[:8] != COMMAND_MAGIC:
                    raise PageError(f"{self.command_path} is not a command page")
                yield page

    def outcome(self, generation: int) -> Outcome | None:
        """Return what became of a command; None while it is not dealt with, or long forgotten."""
        offset = _COMMAND_HEADER_BYTES + NUM_COMMANDS * _REQUEST.size + generation % NUM_COMMANDS * _OUTCOME.size
        for _ in range(MAX_TRIES):
            raw = self.command_path.read_bytes()[offset : offset + _OUTCOME.size]
            again = self.command_path.read_bytes()[offset : offset + _OUTCOME.size]
            sequence, got, state, least_bytes, reason = _OUTCOME.unpack(raw)
            if sequence % 2 == 0 and raw == again:
                return Outcome(_OUTCOME_STATES[state], least_bytes, _text(reason)) if got == generation else None
        return None

    def close(self) -> None:
        """Let go of the mapping."""
        self._map.close()


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
                num_removed += 1
        page.close()
    return num_removed
