"""How a run ended, told to those who watch: `<pid>-<start time>.end` beside its stats page, one line of JSON.

    {"how": "out of memory", "exception": "OutOfMemoryError", "message": "...", "time": 1700000000.0}

`how` is finished, failed (with `code` or `exception`), interrupted, terminated (with `signal`) or out of memory. A run
that was killed leaves no such file. Exceptions are reported by Python's own hook, before the interpreter leaves; exit
codes and signals by C (allocator/os/ending.c), which is there when Python no longer is.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time
from types import TracebackType
from typing import Any

MAX_MESSAGE_CHARS = 2000


class Ending:
    """Watches for the end of this process while a session is open."""

    def __init__(self) -> None:
        self._path: pathlib.Path | None = None
        self._before: Any = None

    def watch(self, page_path: str) -> None:
        """Tell the end of this process beside its stats page at `page_path`; nothing where it has none."""
        if not page_path:
            return
        from daf.allocator._native import lib

        path = pathlib.Path(page_path).with_suffix(".end")
        if lib.daf_ending_watch(os.fsencode(path)):
            return
        self._path = path
        self._before, sys.excepthook = sys.excepthook, self._hear

    def forget(self) -> None:
        """The session ends before the process does: what comes later is no part of the run."""
        if self._path is None:
            return
        from daf.allocator._native import lib

        lib.daf_ending_forget()
        self._path = None
        if sys.excepthook == self._hear:  # else somebody chained to it: it then only passes on
            sys.excepthook = self._before

    def tell(self, error: BaseException | None) -> None:
        """Write how the run ended, by the exception that ended it."""
        if self._path is None or error is None:
            return
        from daf.allocator._native import lib

        record = describe(error)
        with contextlib.suppress(OSError):  # a full disk: then only the page tells that it has ended
            self._path.write_text(json.dumps({**record, "time": time.time()}) + "\n")
            lib.daf_ending_told()

    def _hear(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.tell(error)
        self._before(kind, error, trace)


def describe(error: BaseException) -> dict[str, object]:
    """Return what an exception that reached the top says of the run.

    >>> describe(KeyboardInterrupt())
    {'how': 'interrupted'}
    >>> describe(ValueError("no such file"))
    {'how': 'failed', 'exception': 'ValueError', 'message': 'no such file'}
    """
    if isinstance(error, KeyboardInterrupt):
        return {"how": "interrupted"}
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return {"how": "failed" if code else "finished", "code": code}
    how = "out of memory" if _is_out_of_memory(error) else "failed"
    return {"how": how, "exception": type(error).__name__, "message": str(error)[:MAX_MESSAGE_CHARS]}


def _is_out_of_memory(error: BaseException) -> bool:
    """torch's own error, DAF's, which is one of them, Python's, or what a CPU allocator's failure becomes."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"OutOfMemoryError", "MemoryError"}) or "can't allocate memory" in str(error)
