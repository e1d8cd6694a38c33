"""Listening: a loopback port, a Unix socket, one uvicorn over both, until it is asked to stop or nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from daf import __version__
from daf.errors import DafError
from daf.server.access import tokens
from daf.server.access.job_token import job_token
from daf.server.app import create_app
from daf.server.fleet.members import LIVE
from daf.server.fleet.pages import Pages
from daf.server.fleet.state import Sidecar
from daf.server.jobs.targets import TargetFile
from daf.server.process.connections import protocol_of
from daf.server.process.runfile import Lock, Whereabouts, read_whereabouts, short_path
from daf.server.settings import DEFAULT_PORT, Settings, Tls

log = logging.getLogger("daf.server")
HANDSHAKE_SECONDS = 10.0
TARGETS_SECONDS = 2.0
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
        if settings.tls:
            tls_context(settings.tls)  # said before anything listens
        token = tokens.load_or_create(settings.token_path)
        with listen(settings) as sockets:
            sidecar = Sidecar.build(settings, token, Pages(settings.runtime_dir), job_token=job_token(os.environ))
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
    server = _Server(uvicorn_config(sidecar), sidecar.settings.tls, on_ready=lambda: _ready(sidecar, announce))
    tasks = [
        asyncio.create_task(_exit_when_idle(sidecar, server, idle_exit_seconds)),
        asyncio.create_task(_write_targets(sidecar)),
    ]
    try:
        await server.serve(sockets=sockets)
    finally:
        for task in tasks:
            task.cancel()
        sidecar.peers.close()


async def _write_targets(sidecar: Sidecar) -> None:
    """Keep the file for Prometheus true, where one is asked for."""
    if sidecar.settings.targets_path is None:
        return
    file = TargetFile(sidecar.settings.targets_path)
    while True:
        try:
            file.write(sidecar)
        except OSError as error:
            log.warning("the targets cannot be written: %s", error)
        await asyncio.sleep(TARGETS_SECONDS)


def uvicorn_config(sidecar: Sidecar) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(sidecar),
        loop="asyncio",
        http=protocol_of(sidecar.settings.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
    )


class _Server(uvicorn.Server):
    """uvicorn, telling when it listens, and with TLS on the port alone: the Unix socket needs none."""

    def __init__(self, config: uvicorn.Config, tls: Tls | None, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._tls = tls
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        await super().startup(sockets[1:] if self._tls else sockets)
        if self._tls:
            await self._listen_with(self._tls, sockets[0])
        if self.started:
            self._on_ready()

    async def _listen_with(self, tls: Tls, port: socket.socket) -> None:
        context = tls_context(tls)
        protocol: Any = self.config.http_protocol_class
        make = functools.partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        seconds = HANDSHAKE_SECONDS
        self.servers.append(
            await loop.create_server(make, sock=port, ssl=context, ssl_handshake_timeout=seconds, backlog=512)
        )


def tls_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.cert_path, tls.key_path)
    except (OSError, ssl.SSLError) as error:
        raise DafError(f"no certificate and key in {tls.cert_path} and {tls.key_path}: {error}") from None
    return context


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
    """Bind the TCP port and the Unix socket; the default port, where it is taken, gives way to a free one."""
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(_tcp(settings))
        settings.socket_path.unlink(missing_ok=True)  # left by a killed sidecar: we hold the lock
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with short_path(settings.socket_path) as path:
            unix.bind(path)
        settings.socket_path.chmod(0o600)
        yield [tcp, unix]


def _tcp(settings: Settings) -> socket.socket:
    try:
        return _bound(settings.host, settings.port)
    except OSError as error:
        problem = f"cannot listen on {settings.host}:{settings.port}: {error.strerror}"
        if settings.port != DEFAULT_PORT or error.errno != errno.EADDRINUSE:
            raise DafError(f"{problem}; --port takes another one, 0 a free one") from None
    found = _bound(settings.host, 0)
    log.warning("%s; listening on port %d instead", problem, found.getsockname()[1])
    return found


def _bound(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(512)  # two may bind a port that nobody listens on
    except OSError:
        found.close()
        raise
    return found


def url_of(settings: Settings, sock: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls else 'http'}://{host}:{sock.getsockname()[1]}"
