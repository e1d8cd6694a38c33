"""The routes that change something. The guard has let nobody here without a credential, but for logging in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from daf.server import models
from daf.server.access.guards import client_of, too_many, unauthorized
from daf.server.budget import changes
from daf.server.fleet.members import Member, Reading, Told
from daf.server.fleet.state import Sidecar
from daf.server.problems import ProblemError
from daf.server.routes.selection import Beside, Selected
from daf.sizes import format_bytes

router = APIRouter()
Wait = Annotated[
    float, Query(ge=0, le=30, description="Seconds to wait for the outcome; what is not final is `pending`.")
]


@router.put(
    "/v1/budget",
    tags=["budget"],
    summary="Change the budget of a process, a rank or a whole job",
    response_model=models.BudgetOutcome,
    responses={202: {"model": models.BudgetOutcome, "description": "Sent, not applied yet"}},
)
async def put_budget(
    request: Request,
    change: models.BudgetChange,
    sidecar: Beside,
    selection: Selected,
    *,
    dry_run: Annotated[bool, Query(description="Only say what would be evicted.")] = False,
    force: Annotated[bool, Query(description="Even where the machine has not so much memory.")] = False,
    wait: Wait = 1.0,
) -> Response:
    readings = changes.chosen(sidecar.fleet, selection)
    if dry_run:
        return _answer(changes.would_do(change.budget, readings))
    if not force:
        changes.question(change.budget, readings)
    own_words = [("resize", changes.wanted_bytes(change.budget, reading)) for _, reading in readings]
    async with waiting(sidecar):
        with _telling(readings, own_words):
            answers = await changes.set_budget(change.budget, readings, sidecar.fleet, wait)
            _note(sidecar, request, "budget", change.budget, answers)
    return _answer(answers)


@router.post(
    "/v1/compression",
    tags=["compression"],
    summary="Pause or resume the compression of activations",
    response_model=models.CompressionOutcome,
    responses={202: {"model": models.CompressionOutcome, "description": "Sent, not applied yet"}},
)
async def post_compression(
    request: Request, change: models.CompressionChange, sidecar: Beside, selection: Selected, wait: Wait = 1.0
) -> Response:
    readings = changes.chosen(sidecar.fleet, selection)
    what = "pause" if change.paused else "resume"
    async with waiting(sidecar):
        with _telling(readings, [(what, None)] * len(readings)):
            answers = await changes.set_paused(change.paused, readings, sidecar.fleet, wait)
            _note(sidecar, request, what, None, answers)
    return _answer(answers)


@router.delete("/v1/processes/ended", tags=["processes"], summary="Forget all processes that have ended")
async def forget_ended(request: Request, sidecar: Beside) -> models.Forgotten:
    sidecar.sampler.look()
    forgotten = sidecar.sampler.forget_ended()
    sidecar.audit.note(_who(request), "clean", outcome="applied")
    return models.Forgotten(processes=[member.id for member in forgotten])


@router.post("/v1/login", tags=["sidecar"], summary="Trade a one-time code for a session key")
async def login(request: Request, body: models.Login, sidecar: Beside) -> models.Session:
    key = sidecar.keyring.redeem(body.code)
    sidecar.audit.note(_who(request), "login", outcome="applied" if key else "refused")
    if key is None:
        if not sidecar.rates.allow(
            "failed", client_of(request.scope), sidecar.settings.limits.failed_logins_per_second
        ):
            raise too_many("Too many failed log-ins", seconds=5)
        raise unauthorized()
    return models.Session(key=key)


@router.post("/v1/links", tags=["sidecar"], summary="Make a link that opens the page with the right to change things")
async def make_link(sidecar: Beside) -> models.Link:
    return models.Link(url=f"{sidecar.address}/#code={sidecar.keyring.new_code()}")


def _answer(answers: list[models.OutcomeAnswer]) -> Response:
    """200 when all is done, 202 while some is pending, 409 when any was refused, with all outcomes in each case."""
    state = changes.worst(answers)
    outcomes: list[dict[str, Any]] = [answer.model_dump() for answer in answers]
    if state == "refused":
        reasons = "; ".join(_refusal(a, is_one_of_many=len(answers) > 1) for a in answers if a.state == "refused")
        raise ProblemError(409, "refused", reasons, state=state, outcomes=outcomes)
    return JSONResponse({"state": state, "outcomes": outcomes}, status_code=202 if state == "pending" else 200)


def _refusal(answer: models.OutcomeAnswer, *, is_one_of_many: bool) -> str:
    whose = f"{answer.process}: " if is_one_of_many else ""
    would_do = f" (the least is {format_bytes(answer.least_bytes)})" if answer.least_bytes > answer.budget_bytes else ""
    return whose + answer.reason + would_do


@contextlib.contextmanager
def _telling(readings: list[tuple[Member, Reading]], own_words: Sequence[Told]) -> Iterator[None]:
    """Keep the processes' own words of a change out of the events meanwhile: a change is one line, with its outcome."""
    for (member, _), told in zip(readings, own_words, strict=True):
        member.told = told
    try:
        yield
    finally:
        for member, _ in readings:
            member.told = None


def _note(sidecar: Sidecar, request: Request, what: str, wish: object, answers: list[models.OutcomeAnswer]) -> None:
    """Write each outcome down and tell the clients, after what happened before it."""
    for answer in answers:
        member = sidecar.fleet.members.get(answer.process)
        if member is not None:
            sidecar.sampler.pass_events_on(member)
        facts = answer.model_dump(exclude={"preview"})
        sidecar.audit.note(_who(request), what, wish=wish, **facts)
        # The process's own word for it, which this line stands for: who asks for that kind finds the change.
        kind = {"kind": "resize" if what == "budget" else what} if answer.state != "refused" else {}
        sidecar.hub.publish("change", {"what": what, **kind, "time": sidecar.fleet.clock(), **facts})


def note_change(sidecar: Sidecar, request: Request, what: str, *, wish: object, **facts: Any) -> None:
    """Write down a change of a whole job, and tell the clients."""
    sidecar.audit.note(_who(request), what, wish=wish, **facts)
    sidecar.hub.publish("change", {"what": what, "time": sidecar.fleet.clock(), **facts})


def _who(request: Request) -> str:
    client = request.client.host if request.client else "unix socket"
    return f"{getattr(request.state, 'who', None) or 'nobody'} from {client or 'unix socket'}"


def waiting(sidecar: Sidecar) -> asyncio.Semaphore:
    if sidecar.waits.locked():
        raise too_many("Too many changes wait for their outcome", seconds=1)
    return sidecar.waits
