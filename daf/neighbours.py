"""How the sidecars of a job find each other: by the store that its ranks meet in anyway.

The first rank of each host says there where its host's sidecar listens, and writes down what the others said in
`<pid>-<start>.peers` beside its stats page, from where the sidecar reads it. This happens at the end of optimizer
steps, when all ranks have met, in single calls that wait for nobody, over a connection of its own.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from daf.allocator.place import Place, find_place

MAX_TRIES = 60
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
STORE_TIMEOUT = timedelta(seconds=3)
_ANY = {"0.0.0.0", "[::]", "::"}


class Neighbours:
    """Watches optimizer steps until every host of the job has told where its sidecar is."""

    def __init__(self, page_path: pathlib.Path, token: str, place: Place, meeting_point: tuple[str, int]) -> None:
        self._path = page_path.with_suffix(".peers")
        self._token = token
        self._place = place
        self._meeting_point = meeting_point
        self._store: Any = None
        self._index = -1
        self._num_tries = 0
        self._next_try = 0.0
        self._handle: Any = None

    def watch(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._handle = register_optimizer_step_post_hook(lambda *_: self._maybe_look())

    def forget(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._store = None

    def _maybe_look(self) -> None:
        now = time.monotonic()
        if self._handle is None or now < self._next_try:
            return
        self._num_tries += 1
        self._next_try = now + min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 1.2**self._num_tries)
        try:
            is_done = self._look()
        except Exception as error:  # the run matters more than who watches it
            is_done = self._num_tries >= MAX_TRIES
            if is_done:
                message = f"DAF's sidecars do not find each other: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        if is_done or self._num_tries >= MAX_TRIES:
            self.forget()

    def _look(self) -> bool:
        """Say where we are, once; write down who is there. Return whether all are."""
        address = self._own_address()
        if not address:
            return False
        self._store = self._store or _connect(self._meeting_point)
        if self._index < 0:
            self._index = self._store.add(self._key("num_hosts"), 1) - 1
            self._store.set(self._key(str(self._index)), json.dumps(self._entry(address)))
        entries = self._entries()
        self._write(entries)
        return sum(int(entry["num_ranks"]) for entry in entries) >= self._place.world_size

    def _entry(self, address: str) -> dict[str, object]:
        from daf.server.access.job_token import signature_of

        host = self._place.host
        signature = signature_of(self._token, self._place.job, host, address)
        return {"host": host, "address": address, "num_ranks": self._place.local_world_size, "signature": signature}

    def _entries(self) -> list[dict[str, Any]]:
        """Return the entries of all hosts, of one that was started again the last."""
        found: dict[str, dict[str, Any]] = {}
        for index in range(min(self._store.add(self._key("num_hosts"), 0), 1 << 20)):
            key = self._key(str(index))
            if self._store.check([key]):
                entry = json.loads(self._store.get(key))
                found[str(entry["host"])] = entry
        return list(found.values())

    def _key(self, name: str) -> str:
        return f"daf/{self._place.job}/{name}"

    def _write(self, entries: list[dict[str, Any]]) -> None:
        draft = self._path.with_name(f".{self._path.name}")
        draft.write_text(json.dumps({"job": self._place.job, "hosts": entries}))
        draft.chmod(0o600)
        draft.replace(self._path)

    def _own_address(self) -> str:
        """Return where other hosts reach our sidecar: its address, with ours in place of "any"."""
        from daf.server.process.runfile import read_whereabouts

        found = read_whereabouts(self._path.with_name("sidecar.json"))
        if found is None:
            return ""
        parts = urlsplit(found.address)
        host = parts.netloc.rpartition(":")[0]
        return found.address if host not in _ANY else f"{parts.scheme}://{self._own_ip()}:{parts.port}"

    def _own_ip(self) -> str:
        """Return the address that this host has on the way to where the ranks meet. Nothing is sent."""
        for family, kind, _, _, address in socket.getaddrinfo(*self._meeting_point, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                ip = str(probe.getsockname()[0])
                return f"[{ip}]" if ":" in ip else ip
        return self._meeting_point[0]


def maybe_watch(page_path: str, environ: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Begin to look for the job's other hosts where there are any; return how to stop."""
    from daf.server.access.job_token import job_token

    environ = os.environ if environ is None else environ
    place, token = find_place(environ), job_token(environ)
    port = environ.get("MASTER_PORT", "")
    is_first = place.local_rank == 0 and place.world_size > place.local_world_size
    if not (is_first and token and page_path and environ.get("MASTER_ADDR") and port.isascii() and port.isdigit()):
        return lambda: None
    neighbours = Neighbours(pathlib.Path(page_path), token, place, (environ["MASTER_ADDR"], int(port)))
    neighbours.watch()
    return neighbours.forget


def _connect(meeting_point: tuple[str, int]) -> Any:
    import torch.distributed as dist

    host, port = meeting_point
    store: Any = dist.TCPStore  # type: ignore[attr-defined]  # torch's stubs leave it out
    return store(host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
