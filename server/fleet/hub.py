"""The event stream: one bounded ring that every client reads with a cursor of its own.

The obvious structure, a queue per client, lets the slowest client decide how much memory is held. Here a client is a
number. One that falls behind the ring learns how many events it missed; one that stops reading holds nothing but its
socket until it is cut off. The latest figures are not queued at all: each client gets the newest when it is ready.

    ring:   [ 41 | 42 | 43 | 44 | 45 ]      each entry encoded once, for all
                    ^client A    ^client B
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Any

NUM_TURNS = 16
TURN_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: its number, what it says, and the same as bytes of the stream."""

    number: int
    data: dict[str, Any]
    encoded: bytes


@dataclass(slots=True)
class Cursor:
    """What one client has been given."""

    next_number: int
    figures: int = 0


class Hub:
    """Keeps the last `capacity` events and wakes whoever waits for more."""

    def __init__(self, capacity: int, epoch: str | None = None) -> None:
        self._ring: deque[Entry] = deque(maxlen=capacity)
        self._next_number = 1
        # Event ids carry the sidecar's own name: after its restart the numbers begin anew, and an old id must not
        # be mistaken for a position in the new ring.
        self.epoch = epoch or secrets.token_hex(4)
        self._figures = b""
        self._figures_version = 0
        self._changed = asyncio.Event()
        self.num_clients = 0
        self._num_turns = 0

    @property
    def next_number(self) -> int:
        return self._next_number

    @property
    def oldest_number(self) -> int:
        return self._ring[0].number if self._ring else self._next_number

    def publish(self, kind: str, data: dict[str, Any]) -> int:
        """Append an event; returns its number. `kind` is the stream's event name."""
        number = self._next_number
        data = {"id": number, "type": kind, **data}
        self._ring.append(Entry(number, data, _frame(kind, data, f"{self.epoch}-{number}")))
        self._next_number += 1
        self._wake()
        return number

    def show(self, figures: dict[str, Any]) -> None:
        """Replace the latest figures, which every client gets as soon as it is ready for them."""
        self._figures = _frame("stats", figures)
        self._figures_version += 1
        self._wake()

    def since(self, number: int, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return up to `limit` events numbered `number` or later, and how many of those asked for are gone."""
        lost = max(0, self.oldest_number - max(number, 1))
        found = [entry.data for entry in self._from(number)]
        return found[:limit], lost

    def cursor(self, last_event_id: str | None) -> Cursor:
        """Where a client starts: after the event it names, else with what happens from now on.

        An id of another epoch means that the sidecar was restarted in between: everything in the ring is new to it.
        """
        epoch, _, number = (last_event_id or "").rpartition("-")
        if not last_event_id:
            return Cursor(self._next_number)
        if epoch == self.epoch and number.isascii() and number.isdigit() and len(number) < 20:
            return Cursor(min(int(number) + 1, self._next_number))
        return Cursor(self.oldest_number)

    def take(self, cursor: Cursor, max_events: int = 256) -> bytes:
        """Return what `cursor` has not been given yet, as bytes of the stream; empty where there is nothing."""
        parts = []
        if cursor.next_number < self.oldest_number:
            lost = self.oldest_number - cursor.next_number
            parts.append(_frame("lost", {"count": lost}))
            cursor.next_number = self.oldest_number
        for entry in self._from(cursor.next_number)[:max_events]:
            parts.append(entry.encoded)
            cursor.next_number = entry.number + 1
        if cursor.figures != self._figures_version:
            cursor.figures = self._figures_version
            parts.append(self._figures)
        return b"".join(parts)

    def next_turn(self) -> int:
        """The place of a new client in the line of those that are served."""
        self._num_turns += 1
        return self._num_turns

    def delay_of(self, turn: int) -> float:
        """How long a client holds back: many served at once would be in the way of other requests."""
        return turn % NUM_TURNS * TURN_SECONDS if self.num_clients > NUM_TURNS else 0.0

    async def wait(self, seconds: float) -> None:
        """Return when something new was published, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _wake(self) -> None:
        # A fresh Event each time: all who wait on the old one are released, none can miss the next.
        self._changed.set()
        self._changed = asyncio.Event()

    def _from(self, number: int) -> list[Entry]:
        skip = max(0, number - self.oldest_number)
        return [self._ring[i] for i in range(skip, len(self._ring))] if skip < len(self._ring) else []


def _frame(kind: str, data: dict[str, Any], event_id: str | None = None) -> bytes:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
