"""What the figures of a process were: fixed memory, several resolutions, whatever the length of the run.

A row is one sample of every charted field. Rows go to a ring of each resolution:

    1 s   x  900   the last quarter of an hour
    10 s  x 2160   the last six hours
    60 s  x 1440   the last day

Rings lie in memory; each row is also written to a file of the runtime folder, so that a sidecar that is killed and
started again finds what it knew. The file is not mapped: one that another process cuts off would kill us by SIGBUS.
Layout, all 8-byte doubles: `[rows written][row 0: time, field 0, field 1, ...][row 1 ...]...`.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pathlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVELS = ((1.0, 900), (10.0, 2160), (60.0, 1440))
MAX_FIELDS = 96
HEADER_BYTES = 8192
MAGIC = "daf-history-1"


@dataclass(frozen=True, slots=True)
class Series:
    """Columns over time, all of one length, oldest first."""

    step_seconds: float
    times: list[float]
    columns: dict[str, list[float]]


class Ring:
    """The last `capacity` rows at one resolution, in `buffer`, which nobody else writes."""

    def __init__(self, buffer: memoryview, *, step_seconds: float, capacity: int, num_columns: int) -> None:
        self._cells = buffer.cast("d")
        self.step_seconds = step_seconds
        self._capacity = capacity
        self._width = num_columns + 1
        self._row = struct.Struct(f"{self._width}d")

    @staticmethod
    def num_bytes(capacity: int, num_columns: int) -> int:
        return 8 * (1 + capacity * (num_columns + 1))

    def __len__(self) -> int:
        return min(int(self._cells[0]), self._capacity)

    def add(self, time: float, row: Sequence[float]) -> int:
        """Append the row, or put it in place of the last one where both fall into one step; return its first byte."""
        written = int(self._cells[0])
        if written and int(time / self.step_seconds) == int(self._at(written - 1) / self.step_seconds):
            written -= 1
        base = 1 + (written % self._capacity) * self._width
        self._cells[base] = time
        for i, value in enumerate(row, base + 1):
            self._cells[i] = value
        self._cells[0] = written + 1
        return 8 * base

    @property
    def row_bytes(self) -> int:
        return self._row.size

    def oldest_time(self) -> float | None:
        return self._at(int(self._cells[0]) - len(self)) if len(self) else None

    def rows(self, since: float, max_rows: int) -> list[tuple[float, ...]]:
        """Return at most `max_rows` rows not older than `since`, evenly thinned, the newest always among them."""
        end = int(self._cells[0])
        start = end - len(self)
        while start < end and self._at(start) < since:
            start += 1
        stride = max(1, -(-(end - start) // max_rows))
        picked = range(end - 1, start - 1, -stride)
        return [self._read(i) for i in reversed(picked)]

    def release(self) -> None:
        self._cells.release()

    def _at(self, index: int) -> float:
        return float(self._cells[1 + (index % self._capacity) * self._width])

    def _read(self, index: int) -> tuple[float, ...]:
        base = 1 + (index % self._capacity) * self._width
        return tuple(self._cells[base : base + self._width])


class History:
    """All rings of one process, and the file that keeps them (none where no path is given)."""

    def __init__(self, fields: Sequence[str], path: pathlib.Path | None = None) -> None:
        self.fields = tuple(fields)[:MAX_FIELDS]
        self.path = path
        header = json.dumps([MAGIC, LEVELS, self.fields]).encode().ljust(HEADER_BYTES)
        self._memory = mmap.mmap(-1, _size(self.fields))  # touched as it fills
        self._memory[:HEADER_BYTES] = header[:HEADER_BYTES]
        if path:
            _load(path, header, self._memory)
        self._view = memoryview(self._memory)
        self.rings = list(self._cut(self._view))

    @classmethod
    def left_at(cls, path: pathlib.Path) -> History | None:
        """Return what another sidecar kept of a run, with the fields it kept; None where there is nothing of ours."""
        try:
            with path.open("rb") as file:
                magic, _levels, fields = json.loads(file.read(HEADER_BYTES))
            size = path.stat().st_size
        except (OSError, ValueError, TypeError, ArithmeticError, RecursionError):
            return None
        header = json.dumps([magic, LEVELS, fields]).encode().ljust(HEADER_BYTES)
        return cls(fields, path) if magic == MAGIC and _is_ours(path, header, size) and size == _size(fields) else None

    def _cut(self, view: memoryview) -> list[Ring]:
        rings, offset = [], HEADER_BYTES
        for step, capacity in LEVELS:
            end = offset + Ring.num_bytes(capacity, len(self.fields))
            ring = Ring(view[offset:end], step_seconds=step, capacity=capacity, num_columns=len(self.fields))
            rings.append(ring)
            offset = end
        return rings

    def add(self, time: float, values: Mapping[str, float]) -> None:
        row = [float(values.get(name, 0.0)) for name in self.fields]
        parts, offset = [], HEADER_BYTES
        for ring, (_, capacity) in zip(self.rings, LEVELS, strict=True):
            parts += [(offset + ring.add(time, row), ring.row_bytes), (offset, 8)]  # the count after its row
            offset += Ring.num_bytes(capacity, len(self.fields))
        with contextlib.suppress(OSError):  # a file that is gone, a full disk: the sidecar itself goes on knowing
            self._write(parts)

    def _write(self, parts: Sequence[tuple[int, int]]) -> None:
        """Write these stretches to the file, or all of it where it was cut off. It is opened anew: runs are many."""
        if self.path is None:
            return
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(file).st_size != len(self._view):
                parts = [(0, len(self._view))]
            for offset, num_bytes in parts:
                os.pwrite(file, self._view[offset : offset + num_bytes], offset)
        finally:
            os.close(file)

    def series(self, now: float, seconds: float, points: int) -> Series:
        """Return the last `seconds` in at most `points` rows, from the finest ring that reaches back so far."""
        since = now - seconds
        ring = next((ring for ring in self.rings if self._reaches(ring, since)), self.rings[-1])
        rows = ring.rows(since, points)
        columns = list(zip(*rows, strict=True)) or [()] * (len(self.fields) + 1)
        named = {name: list(column) for name, column in zip(self.fields, columns[1:], strict=True)}
        return Series(ring.step_seconds, list(columns[0]), named)

    def _reaches(self, ring: Ring, since: float) -> bool:
        """Whether no coarser ring knows more of the time after `since`."""
        oldest = ring.oldest_time()
        coarse = [other.oldest_time() for other in self.rings]
        known = min((t for t in coarse if t is not None), default=None)
        return oldest is None or known is None or oldest <= max(since, known + ring.step_seconds)

    def close(self, *, remove: bool = False) -> None:
        for ring in self.rings:
            ring.release()
        with contextlib.suppress(BufferError):
            self._view.release()
            self._memory.close()
        if remove and self.path:
            self.path.unlink(missing_ok=True)


def _size(fields: Sequence[str]) -> int:
    return HEADER_BYTES + sum(Ring.num_bytes(capacity, len(fields)) for _, capacity in LEVELS)


def _load(path: pathlib.Path, header: bytes, memory: mmap.mmap) -> None:
    """Take over what `path` holds if it was made for the same fields, else make it anew, empty."""
    if len(header) > HEADER_BYTES:
        raise ValueError(f"the names of the fields take {len(header)} bytes; at most {HEADER_BYTES} are kept")
    if _is_ours(path, header, len(memory)):
        found = path.read_bytes()
        if len(found) == len(memory):
            memory[:] = found
        return
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, len(memory))  # a full disk is an error here
        os.pwrite(descriptor, header, 0)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _is_ours(path: pathlib.Path, header: bytes, size: int) -> bool:
    try:
        info = path.lstat()
        if info.st_uid != os.geteuid() or info.st_size != size or path.is_symlink():
            return False
        with path.open("rb") as file:
            return file.read(HEADER_BYTES) == header
    except OSError:
        return False
