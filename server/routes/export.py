"""The routes that hand out a run as a file for another tool.

A file outlives the moment, so each takes a sample first: a run that has just ended is written down as ended.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from daf import __version__
from daf.server import models
from daf.server.fleet import figures
from daf.server.fleet.history import Series
from daf.server.fleet.state import Sidecar
from daf.server.memory import read_profile
from daf.server.routes.memory import modules_of, profile_of
from daf.server.routes.perfetto import perfetto_trace
from daf.server.routes.read import fields_of, is_owner, map_of, process_of, row_of, verdicts_of
from daf.server.routes.selection import Beside, Selected, one, one_read
from daf.server.routes.torch_snapshot import torch_snapshot

router = APIRouter(tags=["exports"])
WHOLE_SECONDS = 24 * 3600.0
MAX_POINTS = 2000


@router.get(
    "/v1/snapshot",
    summary="A snapshot that PyTorch's memory viewer opens (a pickle)",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def snapshot(sidecar: Beside, selection: Selected) -> Response:
    sidecar.sampler.tick()
    member, reading = one_read(sidecar.fleet, selection)
    oom = [event for event in events_of(sidecar, member.id) if event.get("kind") == "oom"]
    profile = read_profile(member.page.path)
    content = torch_snapshot(reading.values, reading.slots, map_of(member)["zones"], oom, profile)
    return _file(content, f"daf-{member.id}.pickle", "application/octet-stream")


@router.get("/v1/trace", summary="A trace that Perfetto and Chrome open", response_model=models.Trace)
async def trace(sidecar: Beside, selection: Selected) -> Response:
    sidecar.sampler.tick()
    member = one(sidecar.fleet, selection)
    series = series_of(sidecar, member.id)
    events, profile = events_of(sidecar, member.id), read_profile(member.page.path)
    found = perfetto_trace(member.page.identity.pid, member.label, series, events, profile)
    return JSONResponse(found, headers=_attachment(f"daf-{member.id}.trace.json"))


@router.get("/v1/report", summary="Everything about one run in one document", response_model=models.Report)
async def report(request: Request, sidecar: Beside, selection: Selected) -> Response:
    sidecar.sampler.tick()
    member, reading = one_read(sidecar.fleet, selection)
    series = series_of(sidecar, member.id)
    return JSONResponse(
        {
            "made_at": sidecar.fleet.clock(),
            "version": __version__,
            "process": process_of(member, with_argv=is_owner(request)).model_dump(),
            "fields": [field.model_dump() for field in fields_of(member)],
            "stats": figures.figures(member, reading),
            "history": {"step_seconds": series.step_seconds, "times": series.times, "series": series.columns},
            "slots": [row_of(row) for row in reading.slots],
            "widths": member.widths.show(),
            "map": map_of(member),
            "events": events_of(sidecar, member.id),
            "verdicts": verdicts_of(member, reading),
            "modules": modules_of(member, reading),
            "profile": profile_of(member),
        }
    )


def series_of(sidecar: Sidecar, member_id: str) -> Series:
    """Return the whole known life of a run."""
    member = sidecar.fleet.members[member_id]
    if member.history is None:
        return Series(1.0, [], {})
    return member.history.series(member.ended_at or sidecar.fleet.clock(), WHOLE_SECONDS, MAX_POINTS)


def events_of(sidecar: Sidecar, member_id: str) -> list[dict[str, Any]]:
    return [event for event in sidecar.hub.since(0, 10**6)[0] if event.get("process") == member_id]


def _file(content: bytes, name: str, media_type: str) -> Response:
    return Response(content, media_type=media_type, headers=_attachment(name))


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
