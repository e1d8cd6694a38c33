"""Connections that cost their peer something: bounded in number by listener, and in how long they may ask nothing.

uvicorn waits for ever for the end of a request's header, and counts all connections together: whoever opens a thousand
and sends half a header locks everybody out, the owner on the Unix socket too. Here each listener has its own limit; one
that is full gives up the connection that has asked for nothing the longest, so that who asks is served; and a header
that is not there after `header_seconds` ends its connection.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from daf.server.settings import Limits

WANTED_FILES = 8192


@dataclass(slots=True)
class Listener:
    """The open connections of one listener, the oldest first."""

    most: int
    header_seconds: float
    connections: dict[Any, None] = field(default_factory=dict)

    def admit(self, connection: Any) -> None:
        """Take a new connection; where there are too many, give up the one that has been idle the longest."""
        self.connections[connection] = None
        if len(self.connections) > self.most:
            idle = (other for other in self.connections if not other.is_asking)
            next(idle, connection).give_up()


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP, bounded by its listener. A connection is idle from the end of an answer to the next header."""

    listeners: dict[bool, Listener]  # by whether it is the Unix socket's

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        is_unix = transport.get_extra_info("socket").family == socket.AF_UNIX
        self._listener = self.listeners[is_unix]
        self._deadline: asyncio.TimerHandle | None = None
        self._expect_header()
        self._listener.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._listener.connections.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_asking:
            self._forget_deadline()
        elif self._deadline is None:
            self._expect_header()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._listener.connections[self] = self._listener.connections.pop(self, None)  # the last to have asked

    @property
    def is_asking(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def give_up(self) -> None:
        self.transport.abort()

    def _expect_header(self) -> None:
        self._deadline = self.loop.call_later(self._listener.header_seconds, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        if not self.is_asking:
            self.give_up()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def protocol_of(limits: Limits) -> type[BoundedProtocol]:
    """Return the protocol of one sidecar, whose listeners nobody else shares."""
    num_files = raise_file_limit()
    listeners = {
        False: Listener(min(limits.connections, num_files // 4), limits.header_seconds),
        True: Listener(min(limits.own_connections, num_files // 4), limits.header_seconds),
    }
    return type("SidecarProtocol", (BoundedProtocol,), {"listeners": listeners})


def raise_file_limit(wanted: int = WANTED_FILES) -> int:
    """Take as many open files as the system lets us have, up to `wanted`, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return max(most, 64)
