"""Bit-widths of every slot over the whole life of a run, in memory that does not grow with its length.

A fixed number of columns; when they are full, every other one is dropped and the step doubles. A run of a minute is
seen second by second, one of a day in minutes, always from its beginning.

Now and then all of it is written to a file, for the next sidecar and for reports: a line of JSON (step, times, slots),
then a byte for each width, slot by slot.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

NUM_COLUMNS = 480
SCALE = 16  # a width is kept in sixteenths of a bit, in one byte
MAX_SLOTS = 4096
MAX_CELLS = 400_000
LEAST_COLUMNS = 60
MAX_FILE_BYTES = 4 << 20
MAGIC = "daf-widths-1"
ABSENT = 255
ABSENT_BYTE = bytes([ABSENT])

_EQUAL = re.compile(rb"(.)\1*", re.DOTALL)


class Widths:
    """Rows are slots, columns are moments."""

    def __init__(self, num_columns: int = NUM_COLUMNS, step_seconds: float = 1.0) -> None:
        self._num_columns = num_columns
        self.step_seconds = step_seconds
        self._times: list[float] = []
        self._rows: dict[int, bytearray] = {}

    def add(self, time: float, bits: Mapping[int, float]) -> None:
        """Note the mean width of each slot at `time`, at most once a step."""
        if self._times and time < self._times[-1] + self.step_seconds * 0.99:
            return
        if len(self._times) >= self._num_columns:
            self._halve()
        column = len(self._times)
        self._times.append(time)
        for slot, width in bits.items():
            row = self._row(slot)
            if row is not None:
                row.extend([ABSENT] * (column - len(row)))
                row.append(min(ABSENT - 1, max(0, round(width * SCALE))))

    def show(self, max_cells: int = MAX_CELLS) -> dict[str, Any]:
        """Return the answer of `/v1/widths`, thinned to `max_cells` moments times slots."""
        num, stride = len(self._times), 1
        while num // stride * len(self._rows) > max_cells and num // stride > LEAST_COLUMNS:
            stride *= 2
        return {
            "step_seconds": self.step_seconds * stride,
            "times": [round(time, 3) for time in self._times[::stride]],
            "slots": list(self._rows),
            "runs": [_runs(row.ljust(num, ABSENT_BYTE)[::stride]) for row in self._rows.values()],
        }

    def write(self, path: pathlib.Path) -> None:
        head = json.dumps([MAGIC, self.step_seconds, self._times, list(self._rows)])
        rows = (row.ljust(len(self._times), ABSENT_BYTE) for row in self._rows.values())
        draft = path.with_name(f".{path.name}")  # left by a killed sidecar, it is cleaned away like any file of no run
        draft.write_bytes(head.encode() + b"\n" + b"".join(rows))
        draft.replace(path)

    @classmethod
    def left_at(cls, path: pathlib.Path) -> Widths | None:
        """Return what a sidecar wrote of a run; None where there is nothing of ours."""
        found = cls()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                head, _, rows = file.read(MAX_FILE_BYTES).partition(b"\n")
            magic, step_seconds, times, slots = json.loads(head)
            found.step_seconds, found._times = float(step_seconds), [float(time) for time in times]
            num = len(times)
            found._rows = {int(slot): bytearray(rows[i * num : (i + 1) * num]) for i, slot in enumerate(slots)}
        except (OSError, ValueError, TypeError, ArithmeticError, RecursionError):
            return None
        return found if magic == MAGIC and len(rows) == num * len(slots) and num <= NUM_COLUMNS else None

    def _row(self, slot: int) -> bytearray | None:
        if slot not in self._rows and len(self._rows) < MAX_SLOTS:
            self._rows[slot] = bytearray()
        return self._rows.get(slot)

    def _halve(self) -> None:
        self._times = self._times[::2]
        for row in self._rows.values():
            row[:] = row[::2]
        self.step_seconds *= 2


def _runs(row: bytearray) -> list[float | None]:
    """Count and width, count and width, ...: most slots keep theirs for long."""
    found: list[float | None] = []
    for match in _EQUAL.finditer(row):
        value = row[match.start()]
        found += [match.end() - match.start(), None if value == ABSENT else value / SCALE]
    return found
