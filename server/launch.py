"""Starting a sidecar from a program: in a process of its own that outlives its starter, or in a thread for tests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from daf.allocator.runtime import make_runtime_dir
from daf.server.client import Client, SidecarError
from daf.server.runfile import Whereabouts, is_held, read_whereabouts
from daf.server.settings import DEFAULT_HOST, DEFAULT_PORT, Settings

IDLE_EXIT_SECONDS = 300.0
START_SECONDS = 30.0


def ensure_running(
    host: str = DEFAULT_HOST, port: int = DEFAULT_PORT, *, idle_exit_seconds: float = IDLE_EXIT_SECONDS
) -> str:
    """Return the address of this user's sidecar, starting one where none runs.

    Of many that try at once, one starts: the lock file decides, the others find the winner. It ends by itself once
    nothing has needed it for `idle_exit_seconds`.
    """
    settings = Settings(make_runtime_dir(), host, port)
    found = running(settings)
    if found is None:
        starter = _spawn(settings, idle_exit_seconds)
        found = _wait(settings, starter)
    return found.address


def running(settings: Settings) -> Whereabouts | None:
    """Return where the running sidecar is; None where none runs or it does not answer."""
    found = read_whereabouts(settings.address_path) if is_held(settings.lock_path) else None
    if found is None:
        return None
    try:
        Client(found.address).get("/healthz")
    except SidecarError:
        return None
    return found


def _spawn(settings: Settings, idle_exit_seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "daf.server", "--host", settings.host, "--port", str(settings.port)]
    command += ["--idle-exit", str(idle_exit_seconds), "--quiet"]
    with _log(settings.runtime_dir) as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _log(folder: Path):  # type: ignore[no-untyped-def]
    path = folder / "sidecar.log"
    return path.open("ab" if path.exists() and path.stat().st_size < 1 << 20 else "wb")


def _wait(settings: Settings, starter: subprocess.Popen[bytes]) -> Whereabouts:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = running(settings)
        if found is not None:
            return found
        if starter.poll() is not None and not is_held(settings.lock_path):
            break
        time.sleep(0.02)
    raise SidecarError(0, f"the sidecar did not start: see {settings.runtime_dir / 'sidecar.log'}")
