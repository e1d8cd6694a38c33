"""The routes that only look."""

from __future__ import annotations

import os
from typing import Annotated, Any

import psutil
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse

from daf import __version__
from daf.server import models
from daf.server.fleet import figures
from daf.server.fleet.members import CRASHED, LIVE, Member, Reading, finite
from daf.server.memory import answer_of, read_notes, read_profile
from daf.server.problems import ProblemError
from daf.server.routes.selection import Beside, Selected, members, one, one_read
from daf.server.verdict import Evidence, judge

router = APIRouter()
VERDICT_SECONDS = 600.0
VERDICT_POINTS = 300


@router.get("/healthz", tags=["sidecar"], summary="Whether the sidecar is alive")
async def healthz(sidecar: Beside) -> models.Health:
    live = sum(member.state == LIVE for member in sidecar.fleet.members.values())
    return models.Health(status="ok", version=__version__, live=live, pid=os.getpid())


@router.get("/v1/processes", tags=["processes"], summary="All DAF processes, and their jobs")
async def processes(request: Request, sidecar: Beside, selection: Selected) -> models.Processes:
    sidecar.sampler.look()
    found = members(sidecar.fleet, selection)
    shown = [process_of(member, with_argv=is_owner(request)) for member in found]
    return models.Processes(processes=shown, jobs=_jobs(found))


@router.get("/v1/stats", tags=["figures"], summary="The numbers of each process now", response_model=models.Stats)
async def stats(sidecar: Beside, selection: Selected) -> JSONResponse:
    found = sidecar.fleet.read(members(sidecar.fleet, selection))
    shown = [figures.figures(member, reading) for member, reading in found]
    return JSONResponse({"time": sidecar.fleet.clock(), "processes": shown})


@router.get("/v1/fields", tags=["figures"], summary="What the numbers of a process mean")
async def fields(sidecar: Beside, selection: Selected) -> models.Fields:
    member = one(sidecar.fleet, selection)
    try:
        known = fields_of(member)
    except Exception as error:
        raise ProblemError(409, "unreadable", f"The stats page of {member.id} cannot be read: {error}") from None
    return models.Fields(process=member.id, fields=known)


@router.get(
    "/v1/history", tags=["figures"], summary="The numbers of a process over time", response_model=models.HistoryAnswer
)
async def history(
    sidecar: Beside,
    selection: Selected,
    seconds: Annotated[float, Query(gt=0, le=86400, description="How far back.")] = 600,
    points: Annotated[int, Query(ge=1, le=3000, description="At most so many moments.")] = 600,
) -> JSONResponse:
    member = one(sidecar.fleet, selection)
    now = member.ended_at or sidecar.fleet.clock()
    if member.history is None:
        return JSONResponse({"process": member.id, "step_seconds": 1.0, "times": [], "series": {}})
    found = member.history.series(now, seconds, points)
    return JSONResponse(
        {
            "process": member.id,
            "step_seconds": found.step_seconds,
            "times": [round(time, 3) for time in found.times],
            "series": found.columns,
        }
    )


@router.get(
    "/v1/slots",
    tags=["slots"],
    summary="Width, codec, importance and bytes by layer",
    response_model=models.SlotsAnswer,
)
async def slots(
    sidecar: Beside,
    selection: Selected,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=5000)] = 5000,
) -> JSONResponse:
    member, reading = one_read(sidecar.fleet, selection)
    rows = [row_of(row) for row in reading.slots[offset : offset + limit]]
    return JSONResponse({"process": member.id, "time": reading.time, "total": len(reading.slots), "slots": rows})


@router.get(
    "/v1/widths", tags=["slots"], summary="Bit-width by slot over the whole run", response_model=models.WidthsAnswer
)
async def widths(sidecar: Beside, selection: Selected) -> JSONResponse:
    member = one(sidecar.fleet, selection)
    return JSONResponse({"process": member.id, **member.widths.show()})


@router.get("/v1/verdict", tags=["figures"], summary="What to make of a run, and what to do next")
async def verdict(sidecar: Beside, selection: Selected) -> models.VerdictAnswer:
    member, reading = one_read(sidecar.fleet, selection)
    return models.VerdictAnswer(process=member.id, verdicts=verdicts_of(member, reading))


def verdicts_of(member: Member, reading: Reading) -> list[dict[str, Any]]:
    """Return what the rules find in the figures of now and of the last ten minutes, the gravest first."""
    now = member.ended_at or reading.time
    past = member.history.series(now, VERDICT_SECONDS, VERDICT_POINTS).columns if member.history else {}
    machine_bytes = psutil.virtual_memory().total if member.page.identity.device == "cpu" else 0
    profile = read_profile(member.page.path)
    run = Evidence(
        reading.values,
        reading.slots,
        past,
        machine_bytes,
        notes=read_notes(member.page.path),
        lines=answer_of(profile)["lines"] if profile else (),
    )
    return [found.as_dict() for found in judge(run)]


@router.get("/v1/map", tags=["figures"], summary="What occupies the arena", response_model=models.MapAnswer)
async def arena_map(sidecar: Beside, selection: Selected) -> JSONResponse:
    member = one(sidecar.fleet, selection)
    return JSONResponse({"process": member.id, "map": map_of(member)})


@router.get("/v1/budget", tags=["budget"], summary="The budget of each live process")
async def budget(sidecar: Beside, selection: Selected) -> models.Budgets:
    found = sidecar.fleet.read(m for m in members(sidecar.fleet, selection) if m.state == LIVE)
    return models.Budgets(
        processes=[
            models.BudgetState(
                process=member.id,
                job=member.job,
                rank=member.rank,
                budget_bytes=int(reading.values.get("budget_bytes", 0)),
                resident_bytes=int(reading.values.get("resident_bytes", 0)),
                least_bytes=figures.least_budget(reading.values),
                paused=bool(reading.values.get("is_paused", 0)),
            )
            for member, reading in found
        ]
    )


def fields_of(member: Member) -> list[models.FieldInfo]:
    return [models.FieldInfo(name=f.name, kind=f.kind, unit=f.unit, help=f.help) for f in member.page.fields]


def row_of(row: Any) -> dict[str, Any]:
    """Return a slot row as JSON members; what is no finite number is 0."""
    named = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return {name: finite(value) if isinstance(value, float) else value for name, value in named.items()}


def map_of(member: Member) -> dict[str, Any]:
    """Return the zones of the arena; of each, its cells by what most of them is, and the shares behind that."""
    try:
        cells = member.page.map()
    except Exception as error:
        raise ProblemError(409, "unreadable", f"The map of {member.id} cannot be read: {error}") from None
    zones: dict[str, dict[str, Any]] = {}
    for cell in cells:
        zone = zones.setdefault(
            cell.zone, {"name": cell.zone, "cell_bytes": cell.num_bytes, "cells": [], "live": [], "cached": []}
        )
        shares = {cell.zone: cell.live, "free": cell.cached, "decommitted": cell.decommitted}
        zone["cells"].append(max(shares, key=lambda kind: shares[kind]))
        zone["live"].append(round(cell.live, 3))
        zone["cached"].append(round(cell.cached, 3))
    return {"zones": list(zones.values())}


def is_owner(request: Request) -> bool:
    """Whether the owner asks for sure: with a credential, or by the Unix socket, which nobody else can reach."""
    return getattr(request.state, "who", None) is not None or request.client is None


def process_of(member: Member, *, with_argv: bool) -> models.Process:
    identity = member.page.identity
    return models.Process(
        id=member.id,
        pid=identity.pid,
        name=identity.name,
        state=member.state,  # type: ignore[arg-type]
        job=member.job,
        host=identity.host,
        pod=identity.pod,
        namespace=identity.namespace,
        launcher=identity.launcher,
        rank=member.rank,
        local_rank=max(0, identity.local_rank),
        world_size=max(1, identity.world_size),
        device=identity.device,
        argv=list(identity.argv)[:64] if with_argv else [],
        started_at=identity.started_at,
        ended_at=member.ended_at,
        ending=models.Ending(**member.ending.as_dict()) if member.ending else None,
        heartbeat_age_seconds=member.last.heartbeat_age_seconds if member.last else None,
        versions=dict(identity.versions),
        error=member.error,
    )


def _jobs(found: list[Member]) -> list[models.Job]:
    by_job: dict[str, list[Member]] = {}
    for member in found:
        by_job.setdefault(member.job, []).append(member)
    return [
        models.Job(
            id=job,
            name=ranks[0].label,
            state=_job_state(ranks),  # type: ignore[arg-type]
            world_size=max(1, ranks[0].page.identity.world_size),
            processes=[member.id for member in ranks],
        )
        for job, ranks in by_job.items()
    ]


def _job_state(ranks: list[Member]) -> str:
    states = {member.state for member in ranks}
    return CRASHED if CRASHED in states else LIVE if LIVE in states else ranks[0].state
