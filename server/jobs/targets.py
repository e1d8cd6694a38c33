"""Where Prometheus finds the sidecars: over HTTP, or in a file that it watches."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any
from urllib.parse import urlsplit

from daf.server.fleet.state import Sidecar
from daf.server.jobs.view import peers_of


def targets_of(sidecar: Sidecar) -> list[dict[str, Any]]:
    """Return this sidecar and those of its jobs' other hosts, each once, in the form of http_sd and file_sd."""
    jobs = sorted({member.job for member in sidecar.fleet.members.values()})
    addresses = {sidecar.address: sidecar.host}
    for job in jobs:
        for peer in peers_of(sidecar, job):
            if peer.host != sidecar.host:
                addresses.setdefault(peer.address, peer.host)
    return [_target(address, host) for address, host in addresses.items() if address]


def _target(address: str, host: str) -> dict[str, Any]:
    parts = urlsplit(address)
    return {"targets": [parts.netloc], "labels": {"__scheme__": parts.scheme, "__meta_daf_host": host}}


class TargetFile:
    """The same as a file for `file_sd_configs`; a reader sees the old one or the new one, never half."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._content = ""

    def write(self, sidecar: Sidecar) -> None:
        content = json.dumps(targets_of(sidecar), indent=2) + "\n"
        if content == self._content:
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.write_text(content)
        draft.replace(self._path)
        self._content = content
