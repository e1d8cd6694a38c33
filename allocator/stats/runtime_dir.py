"""Where pages live and whose they are: the runtime folder, process start times, what a process says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import stat
import sys
import time
from collections.abc import Mapping

from daf.allocator.place import find_place

IDENTITY_BYTES = 7900  # what the page has room for
MAX_ARGUMENT_CHARS = 200


def runtime_dir() -> pathlib.Path:
    """Return the folder of this user's pages; it need not exist."""
    if explicit := os.environ.get("DAF_RUNTIME_DIR"):
        return pathlib.Path(explicit)
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        return pathlib.Path(session) / "daf"
    return pathlib.Path(f"/tmp/daf-{os.getuid()}")


def make_runtime_dir() -> pathlib.Path:
    """Return the runtime folder, made for this user alone. One that others could write to is refused."""
    folder = runtime_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of user {os.getuid()}: set DAF_RUNTIME_DIR to one that is")
    if status.st_mode & 0o077:  # somebody shares it on purpose, maybe: what else lies in it is not ours to close off
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(
            f"{folder} is open to other users (mode {mode:03o}): set DAF_RUNTIME_DIR to a folder of your own, such as "
            f"{folder / 'daf'}, which is made for you alone"
        )
    return folder


def process_start_time(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot; None when there is no such process."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    after_name = text.rpartition(")")[2].split()
    return int(after_name[19]) if after_name[0] not in {"Z", "X"} else None


def pid_namespace() -> int:
    """Return what tells this process's pid namespace from others; 0 where the system does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def make_identity(name: str = "", device: str = "cpu", environ: Mapping[str, str] | None = None) -> str:
    """Return what this process says of itself, as the JSON text its page carries."""
    environ = os.environ if environ is None else environ
    place = find_place(environ)
    argv = [argument[:MAX_ARGUMENT_CHARS] for argument in (sys.orig_argv or sys.argv)]
    identity = {
        "name": name or environ.get("DAF_NAME", "") or default_name(sys.argv),
        "argv": argv,
        "job_id": place.job,
        "rank": place.rank,
        "local_rank": place.local_rank,
        "world_size": place.world_size,
        "local_world_size": place.local_world_size,
        "launcher": place.launcher,
        "host": place.host,
        "pod": place.pod,
        "namespace": place.namespace,
        "device": device,
        "launched_by": _pid(environ.get("DAF_LAUNCHED_BY", "")),
        "pid_namespace": pid_namespace(),
        "started_at": time.time(),
        "versions": versions(),
    }
    while len(json.dumps(identity).encode()) > IDENTITY_BYTES and argv:
        argv.pop()
    return json.dumps(identity)


def default_name(argv: list[str]) -> str:
    """Return what to call a run that has no name: its script."""
    return pathlib.Path(argv[0]).name if argv and argv[0] not in {"", "-c", "-m"} else "python"


def versions() -> dict[str, str]:
    """Return the versions of Python, DAF and torch; torch's only if it is loaded."""
    found = {"python": platform.python_version()}
    with contextlib.suppress(ImportError, AttributeError):
        import daf

        found["daf"] = daf.__version__
    if torch := sys.modules.get("torch"):
        found["torch"] = str(getattr(torch, "__version__", ""))
    return found


def _pid(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
