"""The query parameters that many routes share: which processes, and of those the one that is meant."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from daf.server.fleet.members import LIVE, Fleet, Member, Reading, Selection
from daf.server.fleet.state import Sidecar
from daf.server.problems import ProblemError

ID_PATTERN = r"^[0-9]{1,20}(-[0-9]{1,20}){0,2}$"


def _selection(
    process: Annotated[
        str | None, Query(pattern=ID_PATTERN, description="A process id (`<pid>-<start time>`) or a pid.")
    ] = None,
    job: Annotated[str | None, Query(max_length=200, description="A job id or a run's name.")] = None,
    rank: Annotated[int | None, Query(ge=0, le=1_000_000, description="A rank of the job.")] = None,
) -> Selection:
    return Selection(process, job, rank)


def _sidecar(request: Request) -> Sidecar:
    sidecar = request.app.state.sidecar
    assert isinstance(sidecar, Sidecar)
    return sidecar


Selected = Annotated[Selection, Depends(_selection)]
Beside = Annotated[Sidecar, Depends(_sidecar)]


def members(fleet: Fleet, selection: Selection) -> list[Member]:
    """Return what the selection covers; a selection that names something unknown is an error, an empty one is not."""
    found = fleet.select(selection)
    if not found and selection != Selection():
        raise ProblemError(404, "no-such-process", f"No process matches {selection}")
    return found


def one(fleet: Fleet, selection: Selection) -> Member:
    """Return the one process that is meant: the only match, or the only live one of several."""
    found = fleet.select(selection)
    if not found:
        raise ProblemError(404, "no-such-process", f"No process matches {selection}")
    live = [member for member in found if member.state == LIVE]
    if len(found) == 1 or len(live) == 1:
        return (live or found)[0]
    ids = [member.id for member in found[:20]]
    raise ProblemError(409, "ambiguous", f"{len(found)} processes match {selection}: name one", processes=ids)


def one_read(fleet: Fleet, selection: Selection) -> tuple[Member, Reading]:
    member = one(fleet, selection)
    found = fleet.read([member])
    if not found:
        raise ProblemError(409, "unreadable", f"The stats page of {member.id} cannot be read: {member.error}")
    return found[0]
