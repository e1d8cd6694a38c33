"""Listening: a loopback port, a Unix socket, one uvicorn over both, until it is told to stop or nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import uvicorn

from daf import __version__
from daf.errors import DafError
from daf.server.access import tokens
from daf.server.app import create_app
from daf.server.fleet.members import LIVE
from daf.server.fleet.pages import Pages
from daf.server.fleet.state import Sidecar
from daf.server.process.runfile import Lock, Whereabouts, read_whereabouts, short_path
from daf.server.settings import DEFAULT_PORT, Settings

log = logging.getLogger("daf.server")
Announce = Callable[[Sidecar], None]


class AlreadyRunningError(DafError):
    """Another sidecar of this user has the runtime folder; `address` is where it listens, if it says so yet."""

    def __init__(self, address: str | None) -> None:
        super().__init__(f"a sidecar runs already at {address}" if address else "a sidecar is just starting")
        self.address = address


def serve(settings: Settings, *, announce: Announce = lambda _sidecar: None, idle_exit_seconds: float = 0.0) -> None:
    """Run the sidecar until a signal, or until nothing has needed it for `idle_exit_seconds` (0: never)."""
    with Lock(settings.lock_path) as lock:
        if not lock.take():
            found = read_whereabouts(settings.address_path)
            raise AlreadyRunningError(found.address if found else None)
        token = tokens.load_or_create(settings.token_path)
        with listen(settings) as sockets:
            sidecar = Sidecar.build(settings, token, Pages(settings.runtime_dir))
            sidecar.address = url_of(settings, sockets[0])
            # uvicorn ends gracefully and then raises the signal once more: it must not kill us before we cleared up.
            before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
            try:
                asyncio.run(_run(sidecar, sockets, announce, idle_exit_seconds))
            finally:
                signal.signal(signal.SIGTERM, before)
                settings.address_path.unlink(missing_ok=True)
                settings.socket_path.unlink(missing_ok=True)


async def _run(sidecar: Sidecar, sockets: list[socket.socket], announce: Announce, idle_exit_seconds: float) -> None:
    server = _Server(uvicorn_config(sidecar), on_ready=lambda: _ready(sidecar, announce))
    watch = asyncio.create_task(_exit_when_idle(sidecar, server, idle_exit_seconds))
    try:
        await server.serve(sockets=sockets)
    finally:
        watch.cancel()


def uvicorn_config(sidecar: Sidecar) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(sidecar),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=sidecar.settings.limits.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
    )


class _Server(uvicorn.Server):
    """uvicorn, telling when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _ready(sidecar: Sidecar, announce: Announce) -> None:
    settings = sidecar.settings
    Whereabouts(
        address=sidecar.address,
        socket=str(settings.socket_path),
        token_path=str(settings.token_path),
        pid=os.getpid(),
        version=__version__,
    ).write(settings.address_path)
    announce(sidecar)


async def _exit_when_idle(sidecar: Sidecar, server: uvicorn.Server, seconds: float) -> None:
    """Stop once no process has lived and no client has asked for `seconds`."""
    needed_at = time.monotonic()
    num_requests = -1
    while seconds > 0 and time.monotonic() - needed_at < seconds:
        await asyncio.sleep(min(5.0, seconds / 4))
        has_live = any(member.state == LIVE for member in sidecar.fleet.members.values())
        asked = server.server_state.total_requests != num_requests
        if has_live or sidecar.hub.num_clients or asked:
            needed_at, num_requests = time.monotonic(), server.server_state.total_requests
    if seconds > 0:
        log.info("nothing has needed the sidecar for %.0f s: it ends", seconds)
        server.should_exit = True


@contextlib.contextmanager
def listen(settings: Settings) -> Iterator[list[socket.socket]]:
    """Bind the TCP port and the Unix socket; the default port gives way to a free one where it is taken."""
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(_tcp(settings))
        settings.socket_path.unlink(missing_ok=True)  # left by a killed sidecar: we hold the lock
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with short_path(settings.socket_path) as path:
            unix.bind(path)
        settings.socket_path.chmod(0o600)
        yield [tcp, unix]


def _tcp(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    for port in dict.fromkeys((settings.port, 0) if settings.port == DEFAULT_PORT else (settings.port,)):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((settings.host, port))
        except OSError as error:
            found.close()
            problem = error
        else:
            return found
    raise DafError(f"cannot listen on {settings.host}:{settings.port}: {problem.strerror}")


def url_of(settings: Settings, sock: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{sock.getsockname()[1]}"
