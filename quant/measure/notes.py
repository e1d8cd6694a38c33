"""What is noticed of a run from inside: memory that every step leaves behind, the list that holds it, uneven steps.

A look comes at a step of the optimizer, from the script's own training loop: the variables of the functions under way
are at hand. A list, dict or deque in them that gains a tensor with every step is what keeps memory alive, and whole
graphs with it where the tensor has a history. Only lengths and last elements are looked at.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch import Tensor

CONTAINERS = (list, dict, deque)
MAX_FRAMES = 12
MAX_VARIABLES = 500
FIRST_STEP = 4  # before it an optimizer's state and lazy buffers come to be
NUM_SECONDS, MIN_SECONDS = 256, 18
GAIN = 0.5  # of a tensor a step: a list that is only filled in some steps counts too


class Notes:
    """Remembers what was seen at earlier looks: lengths of containers, and how much memory the step took."""

    def __init__(self, arena: Any, path: pathlib.Path | None) -> None:
        self._arena = arena
        self._path = path
        self._lengths: dict[int, tuple[int, int]] = {}  # container -> step, length
        self._peaks: list[tuple[int, int]] = []  # step, most bytes in use during it
        self._began = 0.0
        self._seconds: deque[float] = deque(maxlen=NUM_SECONDS)

    def time(self) -> float:
        """An optimizer begins its step, always the same one: the seconds since it last did, 0 at first."""
        now, before = time.perf_counter(), self._began
        self._began = now
        if not before:
            return 0.0
        self._seconds.append(now - before)
        return now - before

    def look(self, num_steps: int) -> None:
        if num_steps < FIRST_STEP or self._path is None:
            return
        self._peaks = [*self._peaks[-7:], (num_steps, int(self._arena.stats()["step_peak_live_bytes"]))]
        frame: FrameType | None = sys._getframe(1)
        growing = [dict(found) for found in self._growing(frame, num_steps)]
        usual, slow = self._usual_and_slow()
        self._write(
            {
                "steps": num_steps,
                "growth_bytes_per_step": self._rate(),
                "containers": growing,
                "usual_seconds": usual,
                "slow_seconds": slow,
            }
        )

    def _usual_and_slow(self) -> tuple[float, float]:
        """The median, and what a twentieth of the steps take at least; 0 while there are too few."""
        seconds = sorted(list(self._seconds)[2:])
        if len(seconds) < MIN_SECONDS:
            return 0.0, 0.0
        return seconds[len(seconds) // 2], seconds[-max(2, len(seconds) // 20)]

    def _rate(self) -> float:
        """Bytes a step, where every look so far found more than the one before; else 0."""
        peaks = self._peaks
        if len(peaks) < 3 or any(after[1] <= before[1] for before, after in itertools.pairwise(peaks)):
            return 0.0
        return (peaks[-1][1] - peaks[0][1]) / (peaks[-1][0] - peaks[0][0])

    def _growing(self, frame: FrameType | None, num_steps: int) -> Iterator[Mapping[str, Any]]:
        now: dict[int, tuple[int, int]] = {}
        for name, place, value in _variables(frame):
            if id(value) in now:
                continue
            last = _last(value)
            now[id(value)] = (num_steps, len(value))
            before = self._lengths.get(id(value))
            if before is None or not isinstance(last, Tensor) or num_steps <= before[0]:
                continue
            if (len(value) - before[1]) >= GAIN * (num_steps - before[0]):
                yield {"name": name, "place": place, "count": len(value), "has_graph": last.grad_fn is not None}
        self._lengths = now

    def _write(self, notes: Mapping[str, Any]) -> None:
        assert self._path is not None
        with contextlib.suppress(OSError):  # a full disk: the verdict then knows of no name
            draft = self._path.with_suffix(".notes-draft")
            draft.write_text(json.dumps(notes))
            draft.replace(self._path)


def _variables(frame: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    """Name, place and value of the containers that the functions under way, their objects and modules name."""
    seen: set[int] = set()
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        is_library = "/site-packages/" in frame.f_code.co_filename
        place = f"{pathlib.PurePath(frame.f_code.co_filename).name}, {frame.f_code.co_qualname}"
        for space in () if is_library else (frame.f_locals, frame.f_globals):
            if id(space) not in seen:
                seen.add(id(space))
                yield from _named(space, place)
        frame = frame.f_back


def _named(space: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, Any]]:
    for name, value in itertools.islice(list(space.items()), MAX_VARIABLES):
        if type(value) in CONTAINERS:
            yield name, place, value
        elif name == "self" and hasattr(value, "__dict__"):
            own = list(vars(value).items())[:MAX_VARIABLES]
            yield from ((f"self.{key}", place, one) for key, one in own if type(one) in CONTAINERS)


def _last(value: Any) -> Any:
    """The last element of a container, of a tuple in it the first tensor; None of an empty one."""
    if not value:
        return None
    last = next(reversed(value.values())) if isinstance(value, dict) else value[-1]
    if isinstance(last, tuple | list):
        return next((part for part in last if isinstance(part, Tensor)), None)
    return last
