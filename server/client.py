"""Talking to the sidecar, or, where none runs, doing what it would do from the stats pages themselves.

Both ways speak the same requests: without a sidecar the very same application answers them inside this process. The
Unix socket comes first: it lies in a folder of ours, while a port that a killed sidecar left could be anybody's by now,
and the token is not for anybody.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import pathlib
import socket
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from daf.allocator.stats.runtime_dir import runtime_dir
from daf.errors import DafError
from daf.server.access.tokens import read_token
from daf.server.process.runfile import is_held, read_whereabouts, short_path
from daf.server.settings import Settings
from daf.sizes import format_bytes

TIMEOUT_SECONDS = 40.0


class SidecarError(DafError):
    """The sidecar could not be reached or said no; `status` is 0 where it was not reached."""

    def __init__(self, status: int, detail: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.body = dict(body or {})


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a change: the worst of the outcomes, and each of them."""

    state: str
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        if len(self.outcomes) != 1:
            return f"{self.state} ({len(self.outcomes)} processes)"
        only = self.outcomes[0]
        text = f"{self.state} in {1000 * only['seconds']:.0f} ms, resident {format_bytes(only['resident_bytes'])}"
        return f"{text}: {only['reason']}" if only["reason"] else text


class Transport(Protocol):
    """One request, one answer."""

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]: ...


class Client:
    """The API as methods. `Client(address)` for a known sidecar; `Client.find()` for whatever there is."""

    def __init__(self, address: str = "", *, transport: Transport | None = None) -> None:
        self._transport = transport or SocketTransport(Settings(runtime_dir()), address)

    @classmethod
    def find(cls) -> Client:
        """Return a client of whatever answers: the running sidecar, or the stats pages where none runs."""
        return cls(transport=FoundTransport(Settings(runtime_dir())))

    @property
    def is_direct(self) -> bool:
        return isinstance(self._transport, FoundTransport) and self._transport.is_direct

    def get(self, path: str, **query: object) -> Any:
        return self._call("GET", path, query, None)

    def raw(self, path: str, **query: object) -> bytes:
        """Return an answer as it came, such as that of /metrics."""
        status, answer = self._transport.request("GET", _target(path, query), None)
        if status >= 400:
            detail = json.loads(answer).get("detail", status)
            raise SidecarError(status, str(detail))
        return answer

    def processes(self, **query: object) -> Any:
        return self.get("/v1/processes", **query)

    def put_budget(
        self,
        budget: int | str,
        *,
        pid: int | str | None = None,
        job: str | None = None,
        rank: int | None = None,
        dry_run: bool = False,
        force: bool = False,
        wait: float = 2.0,
    ) -> Answer:
        """Ask for a budget; returns once it is applied or refused, or after `wait` seconds."""
        query: dict[str, object] = {"process": pid, "job": job, "rank": rank, "wait": wait}
        query |= {"dry_run": str(dry_run).lower(), "force": str(force).lower()}
        return self._change("PUT", "/v1/budget", query, {"budget": budget})

    def job(self, job: str) -> Any:
        """Return all ranks of a job, on all its hosts."""
        return self.get(f"/v1/jobs/{quote(job, safe='')}")

    def put_job_budget(
        self, budget: int | str, job: str, *, dry_run: bool = False, force: bool = False, wait: float = 30.0
    ) -> Answer:
        """Ask for a budget on all ranks of a job in the same step, or on none."""
        query = {"wait": wait, "dry_run": str(dry_run).lower(), "force": str(force).lower()}
        return self._change("PUT", f"/v1/jobs/{quote(job, safe='')}/budget", query, {"budget": budget})

    def pause(self, paused: bool, *, pid: int | str | None = None, job: str | None = None) -> Answer:
        return self._change("POST", "/v1/compression", {"process": pid, "job": job}, {"paused": paused})

    def forget_ended(self) -> list[str]:
        """Forget all runs that have ended; return their ids."""
        return list(self._call("DELETE", "/v1/processes/ended", {}, None)["processes"])

    def page_link(self) -> str:
        """Return a link that opens the page, once, with the right to change things."""
        return str(self._call("POST", "/v1/links", {}, None)["url"])

    def _change(self, method: str, path: str, query: Mapping[str, object], body: Mapping[str, object]) -> Answer:
        try:
            found = self._call(method, path, query, body)
        except SidecarError as error:
            if "outcomes" not in error.body:
                raise
            found = error.body
        return Answer(found["state"], found["outcomes"])

    def _call(self, method: str, path: str, query: Mapping[str, object], body: Mapping[str, object] | None) -> Any:
        content = json.dumps(body).encode() if body is not None else None
        status, answer = self._transport.request(method, _target(path, query), content)
        try:
            found = json.loads(answer)
        except ValueError:
            raise SidecarError(status, f"the sidecar answered {status} without JSON") from None
        if status >= 400:
            raise SidecarError(status, str(found.get("detail", status)), found)
        return found


class Events:
    """The events that a client has not shown yet, also when a restarted sidecar numbers them anew."""

    def __init__(self, client: Client, kind: str | None = None) -> None:
        self._client = client
        self._kind = kind
        self._next, self._epoch, self._newest = 0, "", 0.0

    def new(self) -> list[dict[str, Any]]:
        """Return what has happened since the last call; at the first, all that is known."""
        answer = self._ask(self._next)
        is_same = answer["epoch"] == self._epoch
        if not is_same and self._next:
            answer = self._ask(0)
        self._next, self._epoch = answer["next"], answer["epoch"]
        found = [event for event in answer["events"] if is_same or event["time"] > self._newest]
        found.sort(key=lambda event: event["time"])
        self._newest = max([self._newest, *(event["time"] for event in found)])
        return found

    def _ask(self, since: int) -> Any:
        return self._client.get("/v1/events", since=since, limit=5000, kind=self._kind)


def _target(path: str, query: Mapping[str, object]) -> str:
    text = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{path}?{text}" if text else path


class FoundTransport:
    """The sidecar while one runs, else the stats pages: looked for anew each time, so a watcher outlives a sidecar."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._direct: DirectTransport | None = None

    @property
    def is_direct(self) -> bool:
        return not (is_held(self._settings.lock_path) and read_whereabouts(self._settings.address_path))

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        if not self.is_direct:
            try:
                return SocketTransport(self._settings).request(method, target, body)
            except SidecarError:
                if not self.is_direct:  # else it has just been killed
                    raise
        self._direct = self._direct or DirectTransport(self._settings)
        return self._direct.request(method, target, body)


class SocketTransport:
    """The running sidecar: by its Unix socket if it is the one of this runtime folder, else by its address."""

    def __init__(self, settings: Settings, address: str = "") -> None:
        found = read_whereabouts(settings.address_path)
        self._socket = found.socket if found and address in ("", found.address) else ""
        self._address = address
        self._token_path = pathlib.Path(found.token_path) if found else settings.token_path

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if (method != "GET" or self._socket) and (token := read_token(self._token_path)):
            headers["Authorization"] = f"Bearer {token}"
        connection = self._connect()
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise SidecarError(0, f"the sidecar cannot be reached: {error}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._socket:
            return _UnixConnection(self._socket)
        return http.client.HTTPConnection(urlsplit(self._address).netloc, timeout=TIMEOUT_SECONDS)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_path(pathlib.Path(self._path)) as path:
            self.sock.connect(path)


class DirectTransport:
    """No sidecar: its application, called in this process, over the same stats pages."""

    def __init__(self, settings: Settings) -> None:
        from daf.server.access.job_token import job_token
        from daf.server.app import create_app
        from daf.server.fleet.pages import Pages
        from daf.server.fleet.state import Sidecar

        self._token = "direct"
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)
        self._sidecar = Sidecar.build(
            settings, self._token, Pages(settings.runtime_dir), keeps_history=False, job_token=job_token(os.environ)
        )
        self._app = create_app(self._sidecar)

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        self._sidecar.sampler.tick()
        return self._loop.run_until_complete(self._call(method, target, body or b""))

    async def _call(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        parts, chunks = urlsplit(target), []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": parts.path, "raw_path": parts.path.encode(), "query_string": parts.query.encode(),
            "headers": [
                (b"host", b"localhost"), (b"authorization", f"Bearer {self._token}".encode()),
                (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            ],
        }  # fmt: skip
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            chunks.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return status, b"".join(chunks)
