"""`/metrics`, in the format that the client prefers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from daf.server.routes.selection import Beside

router = APIRouter()


@router.get(
    "/metrics",
    tags=["metrics"],
    summary="All metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(sidecar: Beside, accept: Annotated[str, Header(max_length=1000)] = "") -> Response:
    encode, content_type = choose_encoder(accept)
    return Response(sidecar.metrics.text(encode), headers={"Content-Type": content_type})
