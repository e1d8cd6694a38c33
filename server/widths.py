"""Bit-widths of every slot over the whole life of a run, in memory that does not grow with its length.

A fixed number of columns; when they are full, every other one is dropped and the step doubles. A run of a minute is
seen second by second, one of a day in minutes, always from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NUM_COLUMNS = 480
SCALE = 16  # a width is kept in sixteenths of a bit, in one byte
MAX_SLOTS = 4096
ABSENT = 255


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

    def table(self, slots: Sequence[int] | None = None) -> tuple[list[float], dict[int, list[float | None]]]:
        """Return the moments and, for each slot, its width at each of them; None where it was not there."""
        wanted = self._rows if slots is None else [slot for slot in slots if slot in self._rows]
        num = len(self._times)
        return list(self._times), {slot: _widths(self._rows[slot], num) for slot in wanted}

    def _row(self, slot: int) -> bytearray | None:
        if slot not in self._rows and len(self._rows) < MAX_SLOTS:
            self._rows[slot] = bytearray()
        return self._rows.get(slot)

    def _halve(self) -> None:
        self._times = self._times[::2]
        for row in self._rows.values():
            row[:] = row[::2]
        self.step_seconds *= 2


def _widths(row: bytearray, num: int) -> list[float | None]:
    padded = row + bytes([ABSENT]) * (num - len(row))
    return [None if value == ABSENT else value / SCALE for value in padded]
