"""What stands before every route: whose host name, whose page, how much, how often, with which right.

One pure ASGI middleware, so that no route can be forgotten: whatever is not a plain read needs a credential, wherever
it is routed to. In order: Host (a rebound DNS name is refused), Origin (another site's page is refused), right, rate,
body size.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daf.server.access.rates import Rates
from daf.server.access.tokens import Keyring
from daf.server.problems import ProblemError
from daf.server.settings import Limits, Settings, is_address

READING = frozenset({"GET", "HEAD"})
# The page itself holds no data and is how a person logs in; liveness says nothing about any run.
OPEN_READS = frozenset({"/", "/healthz"})
OPEN_READ_PREFIX = "/page/"
LOGIN_PATH = "/v1/login"
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Guard:
    """The middleware. Refusals are problem details like any other error."""

    def __init__(self, app: ASGIApp, *, settings: Settings, keyring: Keyring, rates: Rates) -> None:
        self._app = app
        self._settings = settings
        self._keyring = keyring
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except ProblemError as problem:
            await problem.response()(scope, receive, _with_headers(send))
            return
        bounded, sending = _bounded(receive, self._settings.limits), _with_headers(send)
        if scope["method"] == "HEAD":  # routes know GET: the same answer, without its body
            scope["state"]["is_head"] = True
            scope, sending = {**scope, "method": "GET"}, _without_body(sending)
        await self._app(scope, bounded, sending)

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = _only(headers, "host") or ""
        if not self._is_our_name(host):
            raise ProblemError(
                421, "foreign-host", f"Host {host[:100]!r} is not a name of this sidecar: use 127.0.0.1 or --allow-host"
            )
        origin = _only(headers, "origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host.lower()}":
            raise ProblemError(403, "foreign-origin", f"Origin {origin[:100]!r} may not use this sidecar")
        self._check_right(scope, headers)
        _check_length(headers, self._settings.limits)

    def _check_right(self, scope: Scope, headers: Headers) -> None:
        """Look at the credential first: what others ask for must not cost its holder anything."""
        reading, client = scope["method"] in READING, client_of(scope)
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        who = self._keyring.who(credential.strip()) if scheme.lower() == "bearer" else None
        scope.setdefault("state", {})["who"] = who
        is_free = self._is_free(scope, reading)
        if who is None and not is_free:
            if credential and not self._rates.allow("failed", client, self._settings.limits.failed_logins_per_second):
                raise too_many("Too many failed log-ins", seconds=5)
            raise unauthorized()
        if scope["path"] == LOGIN_PATH and who is None:
            return  # charged by its route, once the code was looked at
        limits = self._settings.limits
        kind, per_second = ("read", limits.reads_per_second) if reading else ("change", limits.changes_per_second)
        if not self._rates.allow(kind, f"holder of a {who}" if who else client, per_second):
            raise too_many("Too many requests: slow down", seconds=1)

    def _is_free(self, scope: Scope, reading: bool) -> bool:
        path: str = scope["path"]
        if reading:
            return not self._settings.is_exposed or path in OPEN_READS or path.startswith(OPEN_READ_PREFIX)
        return path == LOGIN_PATH and scope["method"] == "POST"

    def _is_our_name(self, host: str) -> bool:
        name = host.lower()
        if not name.endswith("]") and ":" in name:
            name, _, port = name.rpartition(":")
            if not port.isascii() or not port.isdigit():
                return False
        if name in LOOPBACK_NAMES or name == self._settings.host or name in self._settings.allowed_hosts:
            return True
        # A rebound name is a name: a page whose address is a bare number was served by that very machine.
        return self._settings.is_exposed and is_address(name)


def client_of(scope: Scope) -> str:
    """Return who pays for a request without a credential: its address, or the Unix socket, which is the owner's."""
    return str(scope["client"][0]) if scope.get("client") else "local"


def too_many(detail: str, *, seconds: int) -> ProblemError:
    return ProblemError(429, "too-many-requests", detail, headers={"Retry-After": str(seconds)})


def unauthorized() -> ProblemError:
    return ProblemError(
        401,
        "unauthorized",
        "This needs the sidecar's token ('Authorization: Bearer <token>'); `daf page` opens the page with it",
        headers={"WWW-Authenticate": 'Bearer realm="daf"'},
    )


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise ProblemError(400, "repeated-header", f"The {name} header was sent {len(values)} times")
    return values[0] if values else None


def _check_length(headers: Headers, limits: Limits) -> None:
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > limits.body_bytes:
        raise too_large(limits)


def too_large(limits: Limits) -> ProblemError:
    return ProblemError(413, "body-too-large", f"A request body may have at most {limits.body_bytes} bytes")


def _bounded(receive: Receive, limits: Limits) -> Receive:
    """Count what arrives, and how long all of it takes: a body without a stated length is bounded too."""
    taken, done = 0, False
    deadline = asyncio.get_running_loop().time() + limits.body_seconds

    async def bounded() -> Message:
        nonlocal taken, done
        if done:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise ProblemError(408, "body-too-slow", "The request body did not arrive in time") from None
        taken += len(message.get("body", b""))
        done = not message.get("more_body", False)
        if taken > limits.body_bytes:
            raise too_large(limits)
        return message

    return bounded


def _without_body(send: Send) -> Send:
    async def sending(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return sending


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *SECURITY_HEADERS]
        await send(message)

    return sending
