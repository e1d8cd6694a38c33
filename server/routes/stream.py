"""Server-sent events: `/v1/stream`, and the same events as JSON: `/v1/events`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from daf.server import models
from daf.server.fleet.hub import Cursor, Hub
from daf.server.problems import ProblemError
from daf.server.routes.selection import Beside
from daf.server.settings import Limits

router = APIRouter()
PING_SECONDS = 15.0
RETRY_MILLISECONDS = 1000
EVENT_SCHEMA = {
    "type": "object",
    "description": "One event: its name, its id where it can be replayed, and JSON as text.",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "enum": ["stats", "arena", "process", "change", "lost"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "id": {"type": "string"},
    },
}


@router.get(
    "/v1/events", tags=["events"], summary="Events, oldest first, from a number on", response_model=models.EventsAnswer
)
async def events(
    sidecar: Beside,
    since: Annotated[int, Query(ge=0, le=2**53, description="The first number that is wanted.")] = 0,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
    kind: Annotated[str | None, Query(max_length=40, description="Only this type or kind.")] = None,
) -> JSONResponse:
    found, lost = sidecar.hub.since(since, 10**6)
    if kind is not None:
        found = [event for event in found if kind in (event["type"], event.get("kind"))]
    cut = found[:limit]
    following = cut[-1]["id"] + 1 if len(found) > limit else max(since, sidecar.hub.next_number)
    return JSONResponse({"events": cut, "next": following, "lost": lost, "epoch": sidecar.hub.epoch})


@router.get(
    "/v1/stream",
    tags=["events"],
    summary="Events and figures as they come, as server-sent events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}},
)
async def stream(
    sidecar: Beside,
    last_event_id: Annotated[str | None, Header(max_length=64, description="Replay what came after this id.")] = None,
    since: Annotated[str | None, Query(max_length=64, description="The same, where a header cannot be sent.")] = None,
    seconds: Annotated[float, Query(ge=0, le=86400, description="End after so long; a day by default.")] = 86400,
) -> Response:
    if sidecar.hub.num_clients >= sidecar.settings.limits.stream_clients:
        raise ProblemError(429, "too-many-clients", "Too many event clients", headers={"Retry-After": "10"})
    return EventStream(sidecar.hub, sidecar.hub.cursor(last_event_id or since), sidecar.settings.limits, seconds)


class EventStream(Response):
    """Gives one client what the hub has for its cursor, at the client's own pace.

    `send` waits while the socket's buffer is full; a client that takes nothing for `stream_stall_seconds` is let go.
    """

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, cursor: Cursor, limits: Limits, seconds: float) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._cursor = cursor
        self._limits = limits
        self._seconds = seconds
        self._turn = hub.next_turn()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._hub.num_clients += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope.get("state", {}).get("is_head"):
                await send({"type": "http.response.body", "body": b""})
                return
            gone = asyncio.ensure_future(_disconnected(receive))
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds):
                        await self._feed(send, gone)
                if not gone.done():
                    await send({"type": "http.response.body", "body": b""})
            finally:
                gone.cancel()
        finally:
            self._hub.num_clients -= 1

    async def _feed(self, send: Send, gone: asyncio.Future[None]) -> None:
        chunk = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        while not gone.done():
            if chunk:
                try:
                    async with asyncio.timeout(self._limits.stream_stall_seconds):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                except TimeoutError:
                    return
            chunk = self._hub.take(self._cursor)
            if not chunk:
                await self._hub.wait(PING_SECONDS)
                if delay := self._hub.delay_of(self._turn):
                    await asyncio.sleep(delay)
                chunk = self._hub.take(self._cursor) or b": ping\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
