"""One line for every change that anybody asked for: when, who, what, and what became of it."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import time
from typing import Any

log = logging.getLogger("daf.server")
MAX_BYTES = 1 << 20


class Audit:
    """Appends JSON lines to a file of mode 0600; at `MAX_BYTES` the file becomes `<name>.1` and a new one begins."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def note(self, who: str, what: str, **facts: Any) -> None:
        """Write the line. What was changed is changed: a disk that takes no line is reported in the log instead."""
        line = json.dumps({"time": round(time.time(), 3), "who": who, "what": what, **facts}, default=str) + "\n"
        try:
            self._append(line)
        except OSError as error:
            log.warning("the audit line cannot be written (%s): %s", error, line.rstrip())

    def _append(self, line: str) -> None:
        self._turn()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.write(descriptor, line.encode())  # one write: lines of two writers do not mix
        finally:
            os.close(descriptor)

    def _turn(self) -> None:
        try:
            if self._path.stat().st_size > MAX_BYTES:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
        except FileNotFoundError:
            return
