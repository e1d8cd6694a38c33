"""The FastAPI application: routes, guard, problem details, page, and one background task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response

from daf import __version__
from daf.dashboards import assets
from daf.server import problems
from daf.server.access.guards import Guard
from daf.server.fleet.state import Sidecar
from daf.server.routes import change, export, jobs, memory, read, scrape, stream

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DESCRIPTION = """Watch and steer training runs under DAF.

Reading is free on this machine; changing needs the token in the runtime folder's `sidecar.token`, as a bearer token.
Errors are problem details (RFC 9457). Bytes are bytes, times are seconds, moments are seconds since 1970.
"""


def create_app(sidecar: Sidecar) -> FastAPI:
    """Return the application over `sidecar`; its sampler runs from start-up to shut-down."""
    app = FastAPI(
        title="DAF sidecar",
        version=__version__,
        description=DESCRIPTION,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.state.sidecar = sidecar
    problems.install(app)
    for module in (read, change, stream, scrape, export, memory, jobs):
        app.include_router(module.router)
    app.include_router(page)
    app.add_middleware(Guard, settings=sidecar.settings, keyring=sidecar.keyring, rates=sidecar.rates)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    task = asyncio.create_task(app.state.sidecar.sampler.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        app.state.sidecar.fleet.keep_all_widths()


page = APIRouter(include_in_schema=False)


@page.get("/")
async def index() -> Response:
    return await page_file("index.html")


@page.get("/page/{name}")
async def page_file(name: str) -> Response:
    """Serve a file of the page, or of the chart library it uses."""
    path = assets.page_files().get(name)
    if path is None:
        raise HTTPException(404)
    headers = {"Content-Security-Policy": CONTENT_POLICY, "Cache-Control": "no-cache"}
    return Response(path.read_bytes(), media_type=assets.media_type(name), headers=headers)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the document with the errors as they are: problem details, everywhere."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = problems.MODEL
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _describe(path, method, operation)
        app.openapi_schema = document
    return app.openapi_schema


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    codes = {400: "Malformed", 408: "Too slow", 413: "Body too large", 421: "Foreign Host", 429: "Too many"}
    codes |= {403: "Foreign Origin", 422: "Invalid", 401: "No credential"}
    if path.startswith("/v1/"):
        codes |= {404: "No such process", 409: "Ambiguous, unreadable or refused"}
    for code, text in codes.items():
        operation["responses"][str(code)] = {
            "description": text,
            "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    operation["security"] = (
        [{"token": []}] if method in ("put", "post", "delete") and path != "/v1/login" else [{}, {"token": []}]
    )
