"""Carrying out a wish: from what a person wrote to what each process made of it."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import psutil

from daf.server.budget.preview import preview
from daf.server.fleet.figures import least_budget
from daf.server.fleet.members import LIVE, Fleet, Member, Reading, Selection
from daf.server.models import MAX_BYTES, OutcomeAnswer
from daf.server.problems import ProblemError
from daf.sizes import format_bytes, parse_bytes, parse_percent

POLL_SECONDS = 0.004
UNREACHABLE = (OSError, ValueError, struct.error)  # what a page does whose process or files are gone or odd
POLLS_PER_LOOK = 25  # how often a waiting change looks whether the process still lives
WorstState = Literal["applied", "pending", "refused", "preview"]
_WORST: tuple[WorstState, ...] = ("preview", "applied", "pending", "refused")


def chosen(fleet: Fleet, selection: Selection) -> list[tuple[Member, Reading]]:
    """Return the live processes that a change is about: all of one job, never of two by accident."""
    members = fleet.select(selection, live_only=True)
    if not members:
        ended = fleet.select(selection)
        detail = f"No live process matches {selection}" + ("; what matches has ended" if ended else "")
        raise ProblemError(404, "no-such-process", detail)
    jobs = sorted({member.job for member in members})
    if len(jobs) > 1:
        raise ProblemError(409, "ambiguous", f"{len(jobs)} jobs match {selection}: name one", jobs=jobs[:20])
    readings = fleet.read(members)
    if not readings:
        raise ProblemError(409, "unreadable", f"The stats page of {selection} cannot be read: {members[0].error}")
    return readings


def wanted_bytes(budget: int | str, reading: Reading) -> int:
    """Return the bytes that `budget` means for this process; a percentage is of what it started with."""
    if isinstance(budget, int):
        return budget
    percent = parse_percent(budget)
    if percent is not None:
        start = reading.values.get("initial_budget_bytes") or reading.values.get("budget_bytes", 0)
        num_bytes = int(start * percent)
    else:
        num_bytes = _parsed(budget)
    if not 1 <= num_bytes <= MAX_BYTES:
        detail = f"{budget!r} is {num_bytes} bytes; a budget is 1 to {MAX_BYTES} bytes"
        raise ProblemError(409, "out-of-range", detail)
    return num_bytes


def question(budget: int | str, readings: list[tuple[Member, Reading]]) -> None:
    """Refuse, for the asker to think again, a budget of main memory that the machine does not have."""
    machine_bytes = psutil.virtual_memory().total
    for member, reading in readings:
        num_bytes = wanted_bytes(budget, reading)
        if member.page.identity.device == "cpu" and num_bytes > machine_bytes:
            detail = (
                f"{format_bytes(num_bytes)} is more than the {format_bytes(machine_bytes)} of this machine: the system "
                "would kill the run before the budget held it back; say force if it is meant"
            )
            raise ProblemError(409, "beyond-memory", detail, machine_bytes=machine_bytes)


def _parsed(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ProblemError(422, "invalid-request", str(error)) from None


@dataclass(slots=True)
class Change:
    """One command to one process."""

    member: Member
    before: Reading
    budget_bytes: int
    generation: int
    started: float

    def answer(self, state: WorstState, reading: Reading, *, least_bytes: int = 0, reason: str = "") -> OutcomeAnswer:
        return OutcomeAnswer(
            process=self.member.id,
            state=state,
            budget_bytes=self.budget_bytes,
            before_bytes=int(self.before.values.get("budget_bytes", 0)),
            resident_bytes=int(reading.values.get("resident_bytes", 0)),
            least_bytes=least_bytes or least_budget(reading.values),
            reason=reason,
            generation=self.generation,
            seconds=round(time.monotonic() - self.started, 6),
        )


def would_do(budget: int | str, readings: list[tuple[Member, Reading]]) -> list[OutcomeAnswer]:
    """Return what the budget would do, and change nothing."""
    answers = []
    for member, reading in readings:
        num_bytes = wanted_bytes(budget, reading)
        answer = Change(member, reading, num_bytes, 0, time.monotonic()).answer("preview", reading)
        answer.preview = preview(reading.values, reading.slots, num_bytes, _recent_peak(member, reading.time))
        answers.append(answer)
    return answers


def _recent_peak(member: Member, now: float) -> int:
    """Return the most that was resident in the last half minute's samples."""
    found = member.history.series(now, 30, 30) if member.history else None
    return int(max(found.columns.get("resident_bytes", ()), default=0)) if found else 0


async def set_budget(
    budget: int | str, readings: list[tuple[Member, Reading]], fleet: Fleet, wait_seconds: float
) -> list[OutcomeAnswer]:
    """Ask every process for the budget and return the outcomes, those that came within `wait_seconds`."""
    wishes = [
        Change(member, reading, wanted_bytes(budget, reading), 0, time.monotonic()) for member, reading in readings
    ]
    return list(await asyncio.gather(*(_set_one(change, fleet, wait_seconds) for change in wishes)))


async def _set_one(change: Change, fleet: Fleet, wait_seconds: float) -> OutcomeAnswer:
    page, values = change.member.page, change.before.values
    is_in_force = values.get("budget_bytes") == change.budget_bytes and not values.get("pending_budget_bytes")
    if is_in_force and not _is_pending(change.member):
        return change.answer("applied", change.before, reason="this is the budget already")
    return await _carry_out(change, lambda: page.request_budget(change.budget_bytes), fleet, wait_seconds)


async def set_paused(
    paused: bool, readings: list[tuple[Member, Reading]], fleet: Fleet, wait_seconds: float
) -> list[OutcomeAnswer]:
    async def pause(member: Member, reading: Reading) -> OutcomeAnswer:
        change = Change(member, reading, int(reading.values.get("budget_bytes", 0)), 0, time.monotonic())
        return await _carry_out(change, lambda: member.page.request_pause(paused), fleet, wait_seconds)

    return list(await asyncio.gather(*(pause(member, reading) for member, reading in readings)))


def worst(answers: list[OutcomeAnswer]) -> WorstState:
    return max((answer.state for answer in answers), key=_WORST.index)


def _is_pending(member: Member) -> bool:
    """Whether an earlier command of ours has no final outcome yet, so that the present budget may still change."""
    if member.pending_generation == 0:
        return False
    try:
        outcome = member.page.outcome(member.pending_generation)
    except UNREACHABLE:
        return True
    return outcome is None or outcome.state == "pending"


async def _carry_out(change: Change, send: Callable[[], int], fleet: Fleet, wait_seconds: float) -> OutcomeAnswer:
    """Send the command and poll for its outcome: the process takes it at its next heartbeat or arena call.

    A process that cannot be asked counts as one that refused: the job's other ranks are reported as well.
    """
    member = change.member
    try:
        async with member.commands:
            change.generation = member.pending_generation = send()
            return await _outcome(change, fleet, change.started + wait_seconds)
    except UNREACHABLE as error:
        return change.answer("refused", _latest(fleet, change), reason=f"the process takes no commands: {error}")


async def _outcome(change: Change, fleet: Fleet, deadline: float) -> OutcomeAnswer:
    for attempt in itertools.count(1):
        outcome = change.member.page.outcome(change.generation)
        is_late = time.monotonic() >= deadline
        if outcome is not None and (is_late or outcome.state != "pending"):
            reading = _latest(fleet, change)
            return change.answer(_state(outcome.state), reading, least_bytes=outcome.least_bytes, reason=outcome.reason)
        if is_late:
            return change.answer("pending", _latest(fleet, change), reason="the process has not answered yet")
        if attempt % POLLS_PER_LOOK == 0 and change.member.page.state() != LIVE:
            return change.answer("refused", _latest(fleet, change), reason="the process has ended")
        await asyncio.sleep(POLL_SECONDS)
    raise AssertionError("counting does not end")


def _latest(fleet: Fleet, change: Change) -> Reading:
    found = fleet.read([change.member])
    return found[0][1] if found else change.before


def _state(text: str) -> WorstState:
    return "applied" if text == "applied" else "refused" if text == "refused" else "pending"
