"""A limit on the memory of a process: a control group that the kernel enforces, or else a watcher that kills.

| kind | needs |
|---|---|
| cgroup v2 | a writable group with the memory controller handed down |
| cgroup v1 | a writable memory hierarchy |
| watched | nothing: the resident size is looked at every few milliseconds |
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Protocol

ROOT = Path("/sys/fs/cgroup")


class MemoryLimit(Protocol):
    """What a process is put under right after it was started, before it has grown."""

    kind: str

    def add(self, pid: int) -> None:
        """Put the process under the limit."""

    def close(self) -> None:
        """Give back what the limit needed; the process must have ended."""


class ControlGroup:
    """A new memory control group. The kernel kills a process that would exceed it; there is no swap to hide in."""

    def __init__(self, kind: str, parent: Path, limits: dict[str, int]) -> None:
        self.kind = kind
        self._folder = parent / f"daf-bench-{os.getpid()}-{time.monotonic_ns()}"
        self._folder.mkdir()
        try:
            for name, num_bytes in limits.items():
                if (self._folder / name).exists():
                    (self._folder / name).write_text(str(num_bytes))
        except OSError:
            self.close()
            raise

    def add(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        for _ in range(50):  # the kernel may need a moment to let the last process go
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.1)


class Watched:
    """Kills the process when its resident size is seen above the limit."""

    kind = "watched resident size"

    def __init__(self, limit_bytes: int, interval_seconds: float = 0.005) -> None:
        self._limit_bytes = limit_bytes
        self._interval_seconds = interval_seconds
        self._ended = threading.Event()

    def add(self, pid: int) -> None:
        threading.Thread(target=self._watch, args=(pid,), daemon=True).start()

    def _watch(self, pid: int) -> None:
        page_bytes = os.sysconf("SC_PAGESIZE")
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            while not self._ended.wait(self._interval_seconds):
                if int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes > self._limit_bytes:
                    os.kill(pid, signal.SIGKILL)
                    return

    def close(self) -> None:
        self._ended.set()


def make_limit(limit_bytes: int) -> MemoryLimit:
    """Return the strictest limit that this machine lets us make."""
    with contextlib.suppress(OSError):
        if "memory" in (ROOT / "cgroup.subtree_control").read_text().split():
            return ControlGroup("cgroup v2", ROOT, {"memory.max": limit_bytes, "memory.swap.max": 0})
    with contextlib.suppress(OSError):
        limits = {"memory.limit_in_bytes": limit_bytes, "memory.memsw.limit_in_bytes": limit_bytes}
        if (ROOT / "memory").is_dir():
            return ControlGroup("cgroup v1", ROOT / "memory", limits)
    return Watched(limit_bytes)
