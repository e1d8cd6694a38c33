"""One budget for all ranks of a job, in the same step, or for none.

Two phases. First every rank is asked whether it could; one that cannot, or does not answer, ends it there. Then all
get the command for the same step, far enough ahead that each has it before; one that did not take it ends it, and the
others' is taken back. Where a rank could not after all when the step came, those that did go back to what they had.

    ask ──▶ all can? ──▶ schedule for step S ──▶ all took it? ──▶ step S ──▶ all did? ──▶ applied
               │ no                                  │ no                        │ no
               ▼                                     ▼                           ▼
            refused                       taken back, refused         set back, refused
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from daf.server.budget import changes
from daf.server.fleet.figures import least_budget
from daf.server.fleet.members import LIVE, Member, Reading
from daf.server.fleet.state import Sidecar
from daf.server.jobs.peers import Peer, PeerError
from daf.server.jobs.view import members_of, peers_of
from daf.server.problems import ProblemError
from daf.sizes import format_bytes

Phase = Literal["ask", "schedule", "outcome", "cancel", "restore"]
AHEAD_SECONDS = 3.0  # within which every rank has its command: twice what a peer may take to answer
LEAST_STEP_SECONDS = 0.001
POLL_SECONDS = 0.1
RESTORE_SECONDS = 5.0
Rows = list[dict[str, Any]]
Tickets = dict[tuple[str, str], int]  # by host and process


async def on_this_host(
    sidecar: Sidecar, job: str, phase: Phase, *, budget: int | str = 0, step: int = 0,
    tickets: Mapping[str, int] | None = None, force: bool = False,
) -> Rows:  # fmt: skip
    """Carry out one phase for the ranks of this host; a row each. `tickets` are by process: generations, or bytes."""
    _, members = members_of(sidecar, job)
    if phase in ("ask", "schedule"):
        readings = sidecar.fleet.read([member for member in members if member.state == LIVE])
        return [_asked(*it, budget, force) if phase == "ask" else _schedule(*it, budget, step) for it in readings]
    chosen = [(member, int((tickets or {}).get(member.id, 0))) for member in members]
    named = [(member, ticket) for member, ticket in chosen if ticket > 0]
    if phase == "restore":
        return list(await asyncio.gather(*(_restore(sidecar, *it) for it in named)))
    return [_outcome(*it) if phase == "outcome" else _cancel(*it) for it in named]


def _row(member: Member, **facts: Any) -> dict[str, Any]:
    return {"rank": member.rank, "host": member.page.identity.host, "process": member.id, **facts}


def _asked(member: Member, reading: Reading, budget: int | str, force: bool) -> dict[str, Any]:
    values = reading.values
    wanted, least, reason = changes.wanted_bytes(budget, reading), least_budget(values), ""
    if least > wanted:
        reason = f"it holds {format_bytes(least)} that cannot be dropped"
    elif not force:
        try:
            changes.question(budget, [(member, reading)])
        except ProblemError as problem:
            reason = str(problem.detail)
    return _row(
        member,
        state="refused" if reason else "preview",
        reason=reason,
        budget_bytes=wanted,
        before_bytes=int(values.get("budget_bytes", 0)),
        least_bytes=least,
        steps=int(values.get("steps_total", 0)),
        step_seconds=float(values.get("step_seconds", 0.0)),
        world_size=max(1, member.page.identity.world_size),
    )


def _schedule(member: Member, reading: Reading, budget: int | str, step: int) -> dict[str, Any]:
    try:
        ticket = member.page.request_budget_at(changes.wanted_bytes(budget, reading), step)
    except changes.UNREACHABLE as error:
        return _row(member, state="refused", reason=f"the process takes no commands: {error}", ticket=0)
    member.pending_generation = ticket
    return _row(member, state="pending", reason="", ticket=ticket)


def _outcome(member: Member, ticket: int) -> dict[str, Any]:
    try:
        found = member.page.outcome(ticket)
        state = member.page.state()
    except changes.UNREACHABLE as error:
        return _row(member, state="refused", reason=str(error), ticket=ticket)
    if found is not None:
        return _row(member, state=found.state, reason=found.reason, ticket=ticket)
    if state != LIVE:
        return _row(member, state="refused", reason="the process has ended", ticket=ticket)
    return _row(member, state="pending", reason="", ticket=ticket)


def _cancel(member: Member, ticket: int) -> dict[str, Any]:
    try:
        member.page.request_cancel(ticket)
    except changes.UNREACHABLE as error:
        return _row(member, state="refused", reason=str(error), ticket=ticket)
    return _row(member, state="cancelled", reason="", ticket=ticket)


async def _restore(sidecar: Sidecar, member: Member, num_bytes: int) -> dict[str, Any]:
    readings = sidecar.fleet.read([member])
    [answer] = await changes.set_budget(num_bytes, readings, sidecar.fleet, RESTORE_SECONDS)
    return _row(member, state=answer.state, reason=answer.reason)


class Steering:
    """One change of one job's budget. Hosts are asked at once; what one says is a list of rows."""

    def __init__(self, sidecar: Sidecar, job: str, budget: int | str, *, force: bool) -> None:
        self._sidecar = sidecar
        self.job, members = members_of(sidecar, job)
        here = {member.page.identity.host for member in members}
        self._peers = [peer for peer in peers_of(sidecar, self.job) if peer.host not in here]
        self._wish = {"budget": budget, "force": force}
        self.step = 0

    async def run(self, wait_seconds: float, *, dry_run: bool) -> tuple[str, Rows]:
        """Return what became of it, and a row for each rank."""
        asked = await self._on_all("ask")
        _complain_of_missing(asked)
        if any(row["state"] == "refused" for row in asked) or dry_run:
            return ("refused" if any(row["state"] == "refused" for row in asked) else "preview"), asked
        self.step = step_ahead(asked)
        scheduled = _joined(asked, await self._on_all("schedule", step=self.step))
        if any(row["state"] == "refused" for row in scheduled):
            return await self._take_back(scheduled)
        return await self._await(scheduled, time.monotonic() + wait_seconds)

    async def _await(self, rows: Rows, deadline: float) -> tuple[str, Rows]:
        while True:
            rows = _joined(rows, await self._on_all("outcome", tickets=_tickets(rows)))
            states = {row["state"] for row in rows}
            if states == {"applied"}:
                return "applied", rows
            if "refused" in states or time.monotonic() > deadline:
                return await self._take_back(rows)
            await asyncio.sleep(POLL_SECONDS)

    async def _take_back(self, rows: Rows) -> tuple[str, Rows]:
        """Nobody gets it: what waits is cancelled, what was done is undone."""
        waiting = [row for row in rows if row["state"] != "refused"]
        await self._on_all("cancel", tickets=_tickets(waiting))
        await asyncio.sleep(POLL_SECONDS)
        after = _joined(waiting, await self._on_all("outcome", tickets=_tickets(waiting)))
        done = [row for row in after if row["state"] in ("applied", "pending")]
        if done:
            await self._on_all("restore", tickets={_key(row): row["before_bytes"] for row in done})
        for row in rows:
            if row["state"] != "refused":
                late = row["state"] == "pending"
                row["state"] = "taken back"
                row["reason"] = f"step {self.step} did not come in time" if late else "others could not"
        return "refused", rows

    async def _on_all(self, phase: Phase, *, step: int = 0, tickets: Tickets | None = None) -> Rows:
        if tickets is not None and not tickets:
            return []
        places: list[Peer | None] = [None, *self._peers]
        found = await asyncio.gather(*(self._on(peer, phase, step, tickets or {}) for peer in places))
        rows = [row for rows in found for row in rows]
        return sorted(rows, key=lambda row: (row["rank"], row["host"]))

    async def _on(self, peer: Peer | None, phase: Phase, step: int, tickets: Tickets) -> Rows:
        others = {it.host for it in self._peers}
        if peer is None:
            own = {process: n for (host, process), n in tickets.items() if host not in others}
            wish: dict[str, Any] = dict(self._wish)
            return await on_this_host(self._sidecar, self.job, phase, step=step, tickets=own, **wish)
        named = {process: n for (host, process), n in tickets.items() if host == peer.host}
        body = {**self._wish, "phase": phase, "step": step, "tickets": named}
        try:
            path = f"/v1/jobs/{quote(self.job, safe='')}/ranks/budget"
            answer = await self._sidecar.peers.ask(peer, "PUT", path, body)
            return [dict(row) for row in answer["outcomes"]]
        except (PeerError, KeyError, TypeError) as error:
            return [_unreached(peer, phase, str(error))]


def _unreached(peer: Peer, phase: Phase, reason: str) -> dict[str, Any]:
    """A host that does not answer: a refusal while all may still say no; later its ranks' fate is not known yet."""
    state = "refused" if phase in ("ask", "schedule") else "unknown"
    return {"rank": -1, "host": peer.host, "process": "", "state": state, "reason": reason, "ticket": 0}


def step_ahead(asked: Sequence[Mapping[str, Any]]) -> int:
    """Return the step in which all change: so far ahead that each has the command before it comes."""
    fastest = min(float(row["step_seconds"]) for row in asked)
    return max(int(row["steps"]) for row in asked) + math.ceil(AHEAD_SECONDS / max(fastest, LEAST_STEP_SECONDS)) + 1


def _complain_of_missing(asked: Rows) -> None:
    """Add a row for the ranks that no host has."""
    named = [row for row in asked if row["rank"] >= 0]
    world_size = max((row.get("world_size", 1) for row in named), default=1)
    missing = sorted(set(range(world_size)) - {row["rank"] for row in named})
    if missing:
        words = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
        reason = f"no host that answers has rank {words}"
        asked.append({"rank": missing[0], "host": "", "process": "", "state": "refused", "reason": reason})


def _joined(before: Rows, after: Rows) -> Rows:
    """Return the rows with what is new of each; one that no host told of stays as it was."""
    told = {_key(row): row for row in after if row["process"]}
    others = [row for row in after if not row["process"] and row["state"] == "refused"]
    return [{**row, **told.get(_key(row), {})} for row in before] + others


def _tickets(rows: Rows) -> Tickets:
    return {_key(row): row["ticket"] for row in rows if row.get("ticket")}


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["host"], row["process"]
