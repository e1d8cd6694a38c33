"""Real processes for the sidecar's tests: sidecars, arenas, and waiting without guessing."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from daf.server import Client
from daf.server.process.launch import running
from daf.server.settings import Settings

CHILD = pathlib.Path(__file__).with_name("arena_child.py")


def wait_for(check: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Return the first true answer of `check`; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not come true in {seconds} s: {check}")


def runtime_folder() -> pathlib.Path:
    return pathlib.Path(os.environ["DAF_RUNTIME_DIR"])


@contextlib.contextmanager
def arena_process(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process with a live arena."""
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        end(child)


@contextlib.contextmanager
def sidecar_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    """A sidecar of its own on a free port, and a client of it."""
    child = start_sidecar(*arguments)
    try:
        yield child, client_of(child)
    finally:
        end(child)


def start_sidecar(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "daf.server", "--port", "0", "--quiet", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def client_of(child: subprocess.Popen[bytes]) -> Client:
    settings = Settings(runtime_folder())
    found = wait_for(lambda: (at := running(settings)) and at.pid == child.pid and at)
    return Client(found.address)


def end(child: subprocess.Popen[Any]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()
    if child.stdout:
        child.stdout.close()
