"""Errors as RFC 9457 problem details: every refusal of the API has this one shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:daf:problem:"
MODEL = {
    "title": "Problem",
    "type": "object",
    "description": "RFC 9457 problem details.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": f"`{TYPE_PREFIX}<kind>`"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}


class ProblemError(HTTPException):
    """A refusal, raised anywhere below the guard and answered as problem details.

    An HTTPException, because FastAPI passes only those on when they come up while it reads a body.
    `slug` names the kind for programs, `detail` says it for people, `extra` holds members of its own.
    """

    def __init__(
        self, status: int, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.slug = slug
        self.extra = extra

    def body(self) -> dict[str, Any]:
        return {
            "type": TYPE_PREFIX + self.slug,
            "title": HTTPStatus(self.status_code).phrase,
            "status": self.status_code,
            "detail": self.detail,
            **self.extra,
        }

    def response(self) -> Response:
        content = json.dumps(self.body(), default=str)
        return Response(content, status_code=self.status_code, media_type=MEDIA_TYPE, headers=self.headers)


def install(app: FastAPI) -> None:
    """Answer every error of `app` as problem details."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_bug)


async def _on_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return error.response()


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    slug = HTTPStatus(error.status_code).name.lower().replace("_", "-")
    detail = f"{request.method} {request.url.path}: {error.detail}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed(request))
    return ProblemError(error.status_code, slug, detail, headers=headers).response()


def _allowed(request: Request) -> list[str]:
    """All methods of the path. The router names only those of the first route that it tried."""
    path = request.url.path
    matching = (it for name, it in request.app.openapi()["paths"].items() if compile_path(name)[0].match(path))
    return sorted({method.upper() for operations in matching for method in operations}) or ["GET"]


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"where": ".".join(map(str, e["loc"])), "what": e["msg"].removeprefix("Value error, ")} for e in error.errors()
    ]
    detail = "; ".join(f"{e['where']}: {e['what']}" for e in errors[:3])
    if errors[0]["where"] == "body" and "json" not in request.headers.get("content-type", ""):
        detail += "; send JSON, and say so: Content-Type: application/json"
    return ProblemError(422, "invalid-request", detail, errors=errors[:20]).response()


async def _on_bug(request: Request, error: Exception) -> Response:
    detail = f"{request.method} {request.url.path} failed: {type(error).__name__}"
    return ProblemError(500, "internal-error", detail).response()
