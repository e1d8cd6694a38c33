"""How a run ended: what its process left beside its stats page (written by `daf.ending` and allocator/os/ending.c).

no file, the page says closed     finished
no file, the page says open       killed: nobody had the time to write one
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import stat
from dataclasses import asdict, dataclass
from typing import Any

HOWS = ("finished", "failed", "interrupted", "terminated", "out of memory", "killed")
# What asks for a look: the others ended by themselves or because somebody wanted it.
TROUBLES = frozenset({"failed", "out of memory", "killed"})
MAX_FILE_BYTES = 16384
MAX_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Ending:
    """One end. `code` and `signal` are 0 where they do not apply."""

    how: str
    code: int = 0
    signal: int = 0
    exception: str = ""
    message: str = ""

    @property
    def is_trouble(self) -> bool:
        return self.how in TROUBLES

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "text": str(self)}

    def __str__(self) -> str:
        """The end in a few words.

        >>> str(Ending("failed", exception="ValueError", message="no such file"))
        'failed: ValueError: no such file'
        """
        first_line = self.message.partition("\n")[0][:160]
        detail = f"{self.exception}: {first_line}".rstrip(": ") if self.exception else ""
        if not detail and self.signal:
            detail = _signal_name(self.signal)
        if not detail and self.how == "failed":
            detail = f"exit code {self.code}"
        return f"{self.how}: {detail}" if detail else self.how


def read_ending(page_path: pathlib.Path, *, is_closed: bool) -> Ending:
    """Return how the process of this page ended. Anything may be in the file: what makes no sense is not believed."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        found = _parsed(own_content(page_path.with_suffix(".end"), MAX_FILE_BYTES))
        if found is not None:
            return found
    return Ending("finished" if is_closed else "killed")


def write_killed(page_path: pathlib.Path, number: int) -> None:
    """Say by which signal a process was killed that could not say it itself, where its parent knows."""
    with contextlib.suppress(OSError):
        path = page_path.with_suffix(".end")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"how": "killed", "signal": number}, file)


def own_content(path: pathlib.Path, max_bytes: int) -> bytes:
    """Return what a file of ours holds; empty for a link, a pipe, or another user's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            return b""
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def _parsed(content: bytes) -> Ending | None:
    said = json.loads(content)
    if not isinstance(said, dict) or said.get("how") not in HOWS:
        return None
    return Ending(
        str(said["how"]),
        code=_small(said.get("code", 0)),
        signal=_small(said.get("signal", 0)),
        exception=_text(said.get("exception", ""))[:100],
        message=_text(said.get("message", ""))[:MAX_MESSAGE_CHARS],
    )


def _text(said: object) -> str:
    """JSON's escapes also spell halves of characters, which nobody can write."""
    return str(said).encode(errors="replace").decode()


def _small(number: object) -> int:
    return number if isinstance(number, int) and 0 <= number < 2**31 else 0


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
