"""Where the sidecar says that it runs: one per user and machine, found by all, left behind by none.

`sidecar.lock` is held (flock) as long as the sidecar lives, so the kernel settles every race and a killed sidecar holds
nothing. `sidecar.json` says where it listens; it is written when it listens and is believed while the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What `sidecar.json` holds."""

    address: str
    socket: str
    token_path: str
    pid: int
    version: str

    def write(self, path: pathlib.Path) -> None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        draft.replace(path)


def read_whereabouts(path: pathlib.Path) -> Whereabouts | None:
    """Return what the file says; None where it is missing, malformed or not ours."""
    try:
        if path.lstat().st_uid != os.geteuid():
            return None
        return Whereabouts(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, ArithmeticError, RecursionError):
        return None


@contextlib.contextmanager
def short_path(path: pathlib.Path) -> Iterator[str]:
    """Give a name for a socket's path that fits the 107 bytes a Unix address has, however deep its folder lies."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Lock:
    """Holds the lock file for as long as the context is open."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._descriptor = -1

    def take(self) -> bool:
        """Return whether the lock is ours now; False where another process holds it."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        return True

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.release()


def is_held(path: pathlib.Path) -> bool:
    """Return whether a sidecar holds the lock. Shared and released at once: it disturbs nobody."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    return False
