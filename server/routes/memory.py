"""The routes that take memory apart: by module of the model, by Python line."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from daf.server import models
from daf.server.fleet.members import LIVE, Member, Reading
from daf.server.memory import answer_of, module_tree, read_modules, read_profile, table
from daf.server.problems import ProblemError
from daf.server.routes.change import Wait
from daf.server.routes.selection import Beside, Selected, one, one_read

router = APIRouter(tags=["memory"])
POLL_SECONDS = 0.05


@router.get("/v1/modules", summary="Memory by module of the model", response_model=models.ModulesAnswer)
async def modules(sidecar: Beside, selection: Selected) -> JSONResponse:
    member, reading = one_read(sidecar.fleet, selection)
    return JSONResponse(modules_of(member, reading))


@router.get(
    "/v1/profile", summary="Which lines and modules held memory at the peak", response_model=models.ProfileAnswer
)
async def profile(sidecar: Beside, selection: Selected) -> JSONResponse:
    member = one(sidecar.fleet, selection)
    found = profile_of(member)
    if found is None:
        advice = "start it with `daf run --profile`, or ask with POST /v1/profile while it trains"
        raise ProblemError(404, "no-profile", f"{member.id} has no allocation profile: {advice}")
    return JSONResponse(found)


@router.post(
    "/v1/profile",
    summary="Have a process write its allocation profile, begun if there is none yet",
    response_model=models.ProfileAsked,
    responses={202: {"model": models.ProfileAsked, "description": "Sent: the first profile comes with a step"}},
)
async def ask_profile(sidecar: Beside, selection: Selected, wait: Wait = 2.0) -> JSONResponse:
    member = one(sidecar.fleet, selection)
    if member.state != LIVE:
        raise ProblemError(409, "ended", f"{member.id} has ended: what it wrote is at GET /v1/profile")
    path, before = member.page.path.with_suffix(".profile"), time.time()
    try:
        member.page.request_profile()
    except (OSError, ValueError) as error:
        raise ProblemError(409, "refused", f"{member.id} takes no commands: {error}") from None
    deadline = time.monotonic() + wait
    while not (is_there := path.exists() and path.stat().st_mtime >= before) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    state = "applied" if is_there else "pending"
    return JSONResponse({"process": member.id, "state": state}, status_code=200 if is_there else 202)


def modules_of(member: Member, reading: Reading) -> dict[str, Any]:
    rows = table(read_modules(member.page.path), reading.slots)
    has_profile = read_profile(member.page.path) is not None
    return {"process": member.id, "tree": module_tree(rows), "modules": rows, "has_profile": has_profile}


def profile_of(member: Member) -> dict[str, Any] | None:
    found = read_profile(member.page.path)
    return None if found is None else {"process": member.id, **answer_of(found)}
