"""Processes for the sidecar's benchmarks: sidecars, arenas, trainings; ended when they are done with."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil

from daf.server import Client
from daf.server.process.launch import running
from daf.server.settings import Settings

ROOT = pathlib.Path(__file__).parents[2]
TRAINING = pathlib.Path(__file__).with_name("child.py")


@contextlib.contextmanager
def process(*command: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, *map(str, command)], text=True, **options)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()


@contextlib.contextmanager
def sidecar() -> Iterator[tuple[psutil.Process, Client]]:
    with process("-m", "daf.server", "--port", "0", "--quiet", "--unlimited-rate", stderr=subprocess.DEVNULL) as child:
        yield psutil.Process(child.pid), client_of(child.pid)


def client_of(pid: int) -> Client:
    settings = Settings(pathlib.Path(os.environ["DAF_RUNTIME_DIR"]))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        where = running(settings)
        if where and where.pid == pid:
            return Client(where.address)
        time.sleep(0.05)
    raise SystemExit("the sidecar did not start")


@contextlib.contextmanager
def ready(*command: object) -> Iterator[subprocess.Popen[str]]:
    with process(*command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child


def wait_live(client: Client, count: int) -> list[dict[str, Any]]:
    while True:
        found = [one for one in client.processes()["processes"] if one["state"] == "live"]
        if len(found) >= count:
            return found
        time.sleep(0.1)


def drain(child: subprocess.Popen[str]) -> list[str]:
    """Read what the child prints, in the background, into the list that is returned."""
    lines: list[str] = []
    stdout = child.stdout
    assert stdout is not None
    threading.Thread(target=lambda: lines.extend(iter(stdout.readline, "")), daemon=True).start()
    return lines


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
