"""The sidecars of a job's other hosts: who they are, and asking them.

Each host's first rank tells the others through the job's own TCPStore where its sidecar listens, and writes what it
found there beside its stats page (`<pid>-<start>.peers`). So nothing else listens, and nobody has to be configured.
Anybody who reaches the store could write into it, and the job's token is sent to whoever is named there: an entry
counts only if it is signed with that token.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import http.client
import json
import os
import pathlib
import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from daf.server.access.job_token import signature_of
from daf.server.fleet.endings import own_content

ASK_SECONDS = 1.5
MAX_HOSTS = 100_000
MAX_FILE_BYTES = 16 << 20
MAX_ANSWER_BYTES = 16 << 20
MAX_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Peer:
    """One host's sidecar."""

    host: str
    address: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What a peer said last, and when."""

    time: float
    ranks: list[dict[str, Any]]


class Memory:
    """The last answer of each peer, shown while it does not answer. Bounded by forgetting the oldest."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._answers: dict[tuple[str, str], Answered] = {}

    def keep(self, job: str, host: str, answer: Answered) -> None:
        self._answers.pop((job, host), None)
        self._answers[job, host] = answer
        while len(self._answers) > self._most:
            del self._answers[next(iter(self._answers))]

    def last(self, job: str, host: str) -> Answered | None:
        return self._answers.get((job, host))


class PeerError(Exception):
    """A sidecar that did not answer, or said no; what it says is for people."""


class Peers:
    """Finds the sidecars of a job's hosts and asks them; keeps threads for that, and no state of a job."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._threads: ThreadPoolExecutor | None = None

    @property
    def can_ask(self) -> bool:
        return bool(self._token)

    def of(self, job: str, pages: Iterable[pathlib.Path]) -> list[Peer]:
        """Return what the runs with these stats pages know of `job`, each host once, by name."""
        found: dict[str, Peer] = {}
        for page in pages:
            for peer in _read(page.with_suffix(".peers"), job, self._token):
                found.setdefault(peer.host, peer)
        return [found[host] for host in sorted(found)]

    async def ask(self, peer: Peer, method: str, path: str, body: object = None) -> Any:
        """Return the answer's JSON; PeerError where there is none."""
        if not self._token:
            raise PeerError("this sidecar has no token of the job: set DAF_JOB_TOKEN for all ranks")
        self._threads = self._threads or ThreadPoolExecutor(MAX_AT_ONCE, "daf-peers")
        call = functools.partial(_ask, peer, method, path, body, self._token)
        try:
            async with asyncio.timeout(2 * ASK_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            raise PeerError(f"{peer.address} did not answer in time") from None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _read(path: pathlib.Path, job: str, token: str) -> list[Peer]:
    try:
        said = json.loads(own_content(path, MAX_FILE_BYTES) or b"{}")
        entries = said["hosts"][:MAX_HOSTS] if said.get("job") == job else []
        return [Peer(str(it["host"])[:80], str(it["address"])[:200]) for it in entries if _is_signed(it, job, token)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _is_signed(entry: Mapping[str, Any], job: str, token: str) -> bool:
    signature = signature_of(token, job, str(entry["host"]), str(entry["address"]))
    return hmac.compare_digest(str(entry["signature"]).encode(), signature.encode())


def _ask(peer: Peer, method: str, path: str, body: object, token: str) -> Any:
    headers = {"Authorization": f"Bearer {token}"} | ({"Content-Type": "application/json"} if body is not None else {})
    content = json.dumps(body).encode() if body is not None else None
    try:
        connection = _connection(peer.address)
    except (OSError, ValueError) as error:
        raise PeerError(f"{peer.address} is no address of a sidecar: {error}") from None
    try:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        found = json.loads(answer.read(MAX_ANSWER_BYTES))
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise PeerError(f"{peer.address} cannot be reached: {error}") from None
    finally:
        connection.close()
    if answer.status >= 400 or not isinstance(found, dict):
        detail = found.get("detail", "") if isinstance(found, dict) else ""
        raise PeerError(f"{peer.address} answered {answer.status}: {detail}"[:300])
    return found


def _connection(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=os.environ.get("DAF_TLS_CA") or None)
        return http.client.HTTPSConnection(parts.netloc, timeout=ASK_SECONDS, context=context)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("it is neither http nor https")
    return http.client.HTTPConnection(parts.netloc, timeout=ASK_SECONDS)
