"""All DAF processes of this user on this machine: the living, the finished, the crashed.

A member is read only through `Member.read`, which turns whatever a page could do wrong into a member that is marked
unreadable: one bad file never takes the others with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daf.allocator.stats.reader import StatsPage
from daf.server.fleet.endings import Ending, read_ending
from daf.server.fleet.history import History
from daf.server.fleet.widths import Widths
from daf.server.settings import Limits

log = logging.getLogger("daf.server")
Told = tuple[str, int | None]
Discover = Callable[[], Sequence[StatsPage]]
CODE_SECONDS = 5.0  # from closing the page to the exit of the process
LIVE, FINISHED, CRASHED, UNREADABLE = "live", "finished", "crashed", "unreadable"


@dataclass(frozen=True, slots=True)
class Reading:
    """One snapshot of a member, made safe: every value is a finite number, every list is bounded."""

    time: float
    values: Mapping[str, float]
    slots: Sequence[Any]
    heartbeat_age_seconds: float


@dataclass(slots=True)
class Member:
    """One process and what the sidecar knows of it."""

    id: str
    page: StatsPage
    first_seen: float
    run: str = ""  # what it is called in metrics, given once: a label must not move from one process to another
    state: str = LIVE
    ended_at: float | None = None
    ending: Ending | None = None
    error: str = ""
    last: Reading | None = None
    last_event_id: int = 0
    num_lost_events: int = 0  # gone from the ring before we read them, and not told yet
    told_lost_at: float = 0.0
    told: Told | None = None  # kind and size of events that a change under way tells of itself
    pending_generation: int = 0  # of the last command that was sent; 0 for none
    history: History | None = None
    widths: Widths = field(default_factory=Widths)
    widths_written_at: float = 0.0
    # The command page is a ring of 16: so many may be under way that none is overwritten before it is read.
    commands: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))

    @property
    def job(self) -> str:
        """The job that its launcher named, or for a process on its own a job of one."""
        return self.page.identity.job_id or self.id

    @property
    def rank(self) -> int:
        return max(0, self.page.identity.rank)

    @property
    def is_foreign(self) -> bool:
        """Whether it is in another pid namespace, so that its pid means nothing here."""
        return bool(self.page.is_foreign)

    @property
    def labels(self) -> tuple[str, str, str, str, str]:
        """What its metrics carry: run, job, host, rank, device."""
        identity = self.page.identity
        return self.run, self.job[:80], identity.host[:80], str(self.rank), identity.device[:20] or "cpu"

    @property
    def label(self) -> str:
        """The name a person knows the run by."""
        return self.page.identity.name or f"pid {self.page.identity.pid}"

    def read(self, now: float, max_slots: int) -> Reading | None:
        """Take a snapshot; None, and the reason in `error`, where the page cannot be read."""
        try:
            snapshot = self.page.snapshot()
            values = {name: finite(value) for name, value in snapshot.values.items()}
            age = max(0.0, finite(snapshot.heartbeat_age_seconds))
            self.last = Reading(now, values, list(snapshot.slots[:max_slots]), age)
        except Exception as error:  # the page is another program's: anything may be in it
            self.error = f"{type(error).__name__}: {error}"[:300]
            return None
        self.error = ""
        return self.last

    def may_change(self, now: float) -> bool:
        """Whether its state is worth a look: of one that has just ended the exit code may still come."""
        has_just_ended = now - (self.ended_at or 0.0) < CODE_SECONDS
        return self.state in (LIVE, UNREADABLE) or has_just_ended or self._may_come_back()

    def _may_come_back(self) -> bool:
        """One of another container that fell silent may have been stopped, and says nothing of an end."""
        return self.is_foreign and self.ending is not None and self.ending.how == "killed"

    def look(self, now: float) -> bool:
        """Ask the page for its state; returns whether it changed."""
        state: str
        try:
            state = self.page.state()
        except Exception as error:
            self.error, state = f"{type(error).__name__}: {error}"[:300], UNREADABLE
        if state in (FINISHED, CRASHED):
            self.ending = read_ending(pathlib.Path(self.page.path), is_closed=state == FINISHED)
            state = CRASHED if self.ending.is_trouble else FINISHED
        changed = state != self.state
        self.state = state
        if state == LIVE:
            self.ended_at = self.ending = None
        elif self.ended_at is None:
            self.ended_at = now
        return changed

    def forget(self) -> None:
        if self.history is not None:
            self.history.close(remove=True)
        with contextlib.suppress(Exception):
            self.page.close()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which processes a request is about. Empty means all."""

    process: str | None = None
    job: str | None = None
    rank: int | None = None

    def covers(self, member: Member) -> bool:
        return (
            self.process in (None, member.id, str(member.page.identity.pid))
            and self.job in (None, member.job, member.page.identity.name or None)
            and self.rank in (None, member.rank)
        )

    def __str__(self) -> str:
        named = {"process": self.process, "job": self.job, "rank": self.rank}
        return ", ".join(f"{key} {value!r}" for key, value in named.items() if value is not None) or "any process"


class Fleet:
    """The members by id (`<pid>-<start time>`), kept up to date by `refresh`."""

    def __init__(
        self,
        discover: Discover,
        *,
        limits: Limits | None = None,
        history_dir: pathlib.Path | None = None,
        keeps_history: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._discover = discover
        self._limits = limits or Limits()
        self._history_dir = history_dir
        self._keeps_history = keeps_history
        self.clock = clock
        self.members: dict[str, Member] = {}

    def refresh(self) -> list[tuple[Member, str]]:
        """Look for new processes and changed states; returns what changed, as (member, what)."""
        now, changes = self.clock(), []
        for page in sorted(self._discover(), key=lambda page: page.identity.started_at):
            member_id = pathlib.Path(page.path).stem
            if member_id not in self.members and len(self.members) < self._limits.processes:
                member = Member(member_id, page, first_seen=now)
                self.members[member_id] = member
                member.widths = self._widths_left(member) or member.widths
                member.run = self._run_name(member)
                member.look(now)
                if member.state != LIVE:
                    self._recall(member, now)
                changes.append((member, "appeared"))
        lasting = [member for member in self.members.values() if member.may_change(now)]
        changes += [(member, member.state) for member in lasting if member.look(now)]
        changes += [(member, "forgotten") for member in self._drop_old(now)]
        return changes

    def _run_name(self, member: Member) -> str:
        """A run is known by its name, else by its job; beside a living one with equal labels also by its id."""
        member.run = (member.page.identity.name or member.job)[:80]
        others = (other for other in self.members.values() if other is not member and other.state == LIVE)
        is_taken = any(other.labels == member.labels for other in others)
        return f"{member.run} {member.id}" if is_taken else member.run

    def history_of(self, member: Member, reading: Reading) -> History:
        if member.history is None:
            fields = sorted(reading.values)
            try:
                member.history = History(fields, self._history_path(member) if self._keeps_history else None)
            except (OSError, ValueError) as error:  # a full disk, or names that no file takes: then only in memory
                log.warning("the history of %s is not kept in a file: %s", member.id, error)
                member.history = History(fields)
        return member.history

    def _history_path(self, member: Member) -> pathlib.Path | None:
        return self._history_dir / f"{member.id}.history" if self._history_dir else None

    def _widths_left(self, member: Member) -> Widths | None:
        return Widths.left_at(self._history_dir / f"{member.id}.widths") if self._history_dir else None

    def keep_widths(self, member: Member) -> None:
        """Write down the widths so far, for those who come after this sidecar."""
        member.widths_written_at = self.clock()
        if self._keeps_history and self._history_dir:
            with contextlib.suppress(OSError):  # a full disk: they stay in memory
                member.widths.write(self._history_dir / f"{member.id}.widths")

    def keep_all_widths(self) -> None:
        for member in self.members.values():
            if member.state == LIVE:
                self.keep_widths(member)

    def _recall(self, member: Member, now: float) -> None:
        """A run that ended before we came: it ended with its last heartbeat, and an earlier sidecar may know more."""
        reading, path = member.read(now, self._limits.slots), self._history_path(member)
        member.ended_at = now - reading.heartbeat_age_seconds if reading else now
        member.history = History.left_at(path) if path else None
        member.last = None  # so that the sampler takes its last figures and events, once

    def select(self, selection: Selection, *, live_only: bool = False) -> list[Member]:
        found = [m for m in self.members.values() if selection.covers(m) and (m.state == LIVE or not live_only)]
        return sorted(found, key=lambda m: (m.state != LIVE, m.job, m.rank, m.id))

    def read(self, members: Iterable[Member]) -> list[tuple[Member, Reading]]:
        """Take one snapshot of each; of an ended one whose page is gone, the last that was taken."""
        found = []
        for member in members:
            reading = member.read(self.clock(), self._limits.slots) or member.last
            if reading is not None:
                found.append((member, reading))
        return found

    def _drop_old(self, now: float) -> list[Member]:
        ended = [m for m in self.members.values() if m.ended_at is not None]
        ended.sort(key=lambda m: m.ended_at or 0.0)
        excess = len(ended) - self._limits.ended_processes
        old = [m for i, m in enumerate(ended) if i < excess or now - (m.ended_at or now) > self._limits.ended_seconds]
        for member in old:
            self._drop(member)
        return old

    def drop_ended(self) -> list[Member]:
        """Forget every process that has ended, and return them."""
        ended = [member for member in self.members.values() if member.state != LIVE]
        for member in ended:
            self._drop(member)
        return ended

    def _drop(self, member: Member) -> None:
        del self.members[member.id]
        member.forget()
        if self._history_dir:
            (self._history_dir / f"{member.id}.widths").unlink(missing_ok=True)


def finite(value: float) -> float:
    return value if isinstance(value, int) or math.isfinite(value) else 0.0
