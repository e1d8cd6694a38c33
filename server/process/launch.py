"""Starting a sidecar from a program, in a process of its own that outlives its starter."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from daf.allocator.stats.runtime_dir import make_runtime_dir
from daf.server.client import Client, SidecarError
from daf.server.process.runfile import Whereabouts, is_held, read_whereabouts
from daf.server.settings import DEFAULT_HOST, DEFAULT_PORT, Settings, check_exposure_of

IDLE_EXIT_SECONDS = 300.0
START_SECONDS = 30.0
MAX_LOG_BYTES = 1 << 20


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
        _spawn(settings, idle_exit_seconds)
        found = _wait(settings)
    return found.address


def start_beside(where: str) -> None:
    """See to it that a sidecar comes up beside this process, without waiting for it: `on`, or `host:port`."""
    host, _, port = where.rpartition(":")
    check_exposure_of(host or DEFAULT_HOST, os.environ)
    settings = Settings(make_runtime_dir(), host or DEFAULT_HOST, int(port) if host else DEFAULT_PORT)
    if not is_held(settings.lock_path):
        _spawn(settings, IDLE_EXIT_SECONDS)


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


def _spawn(settings: Settings, idle_exit_seconds: float) -> None:
    command = [sys.executable, "-P", "-m", "daf.server", "--host", settings.host, "--port", str(settings.port)]
    command += ["--idle-exit", str(idle_exit_seconds), "--quiet"]
    # -P: what lies in the working folder is no module of the sidecar's.
    # Through a shell that leaves at once: the sidecar is nobody's child, so no starter has to outlive or bury it.
    detached = ["/bin/sh", "-c", '"$@" &', "sh", *command]
    path = settings.runtime_dir / "sidecar.log"
    is_small = path.exists() and path.stat().st_size < MAX_LOG_BYTES
    with path.open("ab" if is_small else "wb") as log:
        subprocess.run(detached, check=True, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait(settings: Settings) -> Whereabouts:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = running(settings)
        if found is not None:
            return found
        time.sleep(0.02)
    raise SidecarError(0, f"the sidecar did not start: see {settings.runtime_dir / 'sidecar.log'}")
