"""The routes about whole jobs, over all their hosts, and where sidecars are for Prometheus."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from daf.server.jobs import documents
from daf.server.jobs.steering import Steering, on_this_host
from daf.server.jobs.targets import targets_of
from daf.server.jobs.view import job_view, ranks_here
from daf.server.problems import ProblemError
from daf.server.routes.change import note_change, waiting
from daf.server.routes.selection import Beside

router = APIRouter()
JobName = Annotated[str, Path(max_length=200, description="A job id or a run's name.")]


@router.get(
    "/v1/jobs/{job}", tags=["jobs"], summary="All ranks of a job, on all its hosts", response_model=documents.Job
)
async def job(sidecar: Beside, job: JobName) -> JSONResponse:
    sidecar.sampler.look()
    return JSONResponse(await job_view(sidecar, job))


@router.get(
    "/v1/jobs/{job}/ranks", tags=["jobs"], summary="The ranks of a job on this host", response_model=documents.RanksHere
)
async def ranks(sidecar: Beside, job: JobName) -> JSONResponse:
    sidecar.sampler.look()
    job_id, _, found = ranks_here(sidecar, job)
    return JSONResponse({"id": job_id, "ranks": found})


@router.put(
    "/v1/jobs/{job}/budget",
    tags=["jobs"],
    summary="Change the budget of all ranks in the same step, or of none",
    response_model=documents.JobOutcome,
)
async def put_job_budget(
    request: Request,
    change: documents.JobBudget,
    sidecar: Beside,
    job: JobName,
    *,
    dry_run: Annotated[bool, Query(description="Only ask every rank whether it could.")] = False,
    force: Annotated[bool, Query(description="Even where a machine has not so much memory.")] = False,
    wait: Annotated[float, Query(ge=0, le=600, description="Seconds to wait for the step.")] = 60.0,
) -> Response:
    steering = Steering(sidecar, job, change.budget, force=force)
    async with waiting(sidecar):
        state, rows = await steering.run(wait, dry_run=dry_run)
        if not dry_run:
            facts = {"job": steering.job, "state": state, "step": steering.step}
            note_change(sidecar, request, "budget", wish=change.budget, **facts)
    if state == "refused" and not dry_run:
        raise ProblemError(409, "refused", _reasons(rows), state=state, step=steering.step, outcomes=rows)
    return JSONResponse({"state": state, "step": steering.step, "outcomes": rows})


@router.put(
    "/v1/jobs/{job}/ranks/budget",
    tags=["jobs"],
    summary="One phase of a job's change, for the ranks of this host",
    response_model=documents.PhaseOutcome,
)
async def put_phase(change: documents.Phase, sidecar: Beside, job: JobName) -> JSONResponse:
    facts = change.model_dump(include={"budget", "step", "tickets", "force"})
    return JSONResponse({"outcomes": await on_this_host(sidecar, job, change.phase, **facts)})


@router.get(
    "/v1/targets",
    tags=["metrics"],
    summary="The sidecars of all hosts, for Prometheus' HTTP service discovery",
    response_model=list[documents.Target],
)
async def targets(sidecar: Beside) -> JSONResponse:
    return JSONResponse(targets_of(sidecar))


def _reasons(rows: list[dict[str, Any]]) -> str:
    refused = [row for row in rows if row["state"] == "refused"] or rows
    return "; ".join(f"{_whose(row)}: {row['reason']}" for row in refused[:20])


def _whose(row: dict[str, Any]) -> str:
    return f"rank {row['rank']}" + (f" on {row['host']}" if row["host"] else "") if row["rank"] >= 0 else row["host"]
