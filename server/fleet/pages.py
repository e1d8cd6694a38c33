"""The stats pages in the runtime folder, each opened once.

Opening a page means reading its tables and its identity; looking whether one is new means reading names. Only the
latter happens every second.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
import stat

from daf.allocator.stats import reader

log = logging.getLogger("daf.server")
MAX_PAGE_BYTES = 64 << 20
MAX_FILES = 4096
MAX_OPEN = 2048  # pages: each has a descriptor
MAX_OPENED_PER_LOOK = 256  # so that thousands of new ones cost no second at once
MAX_TOLD = 64  # refused files that the log names
# What lies beside a stats page and goes with it.
BESIDE = ("*.history", "*.widths", "*.cmd", "*.end", "*.profile", "*.modules", "*.notes", "*.oom.json", "*.peers")
PAGE_NAME = re.compile(r"[0-9]{1,20}-[0-9]{1,20}(-[0-9]{1,20})?\.stats", re.ASCII)


class Pages:
    """Finds the pages of one folder. What is not ours, or no stats page, is left alone and named in the log once."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, int], reader.StatsPage] = {}
        self._refused: dict[tuple[str, int, int], str] = {}
        self._attempts: dict[str, tuple[str, int, int]] = {}  # the last one of each name

    def __call__(self) -> list[reader.StatsPage]:
        found: dict[tuple[str, int], reader.StatsPage] = {}
        num_tried = 0
        for entry, info in self._files():
            key = (entry, info.st_ino)
            page = self._open.get(key)
            if page is None and num_tried < MAX_OPENED_PER_LOOK and len(found) < MAX_OPEN:
                num_tried += not self._is_refused(entry, info)
                page = self._opened(entry, info)
            if page is not None:
                found[key] = page
        self._open = found
        return list(found.values())

    def _is_refused(self, name: str, info: os.stat_result) -> bool:
        return (name, info.st_ino, info.st_mtime_ns) in self._refused

    def _files(self) -> list[tuple[str, os.stat_result]]:
        files: list[tuple[str, os.stat_result]] = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".stats") and len(files) < MAX_FILES:
                        files.append((entry.name, entry.stat(follow_symlinks=False)))
        except OSError:
            return files
        return sorted(files)

    def _opened(self, name: str, info: os.stat_result) -> reader.StatsPage | None:
        # A page that is just being made fails and is tried again when it has changed.
        attempt = (name, info.st_ino, info.st_mtime_ns)
        if self._is_refused(name, info):
            return None
        reason = _objection(name, info)
        if not reason:
            try:
                return reader.StatsPage(self._folder / name)
            except Exception as error:  # the file is another program's: anything may be in it
                reason = f"{type(error).__name__}: {error}"
        self._refuse(attempt, reason)
        return None

    def _refuse(self, attempt: tuple[str, int, int], reason: str) -> None:
        """Remember the file as it is, and no more of them than a folder may have; the log names the first few."""
        earlier = self._attempts.pop(attempt[0], None)
        if earlier is not None:
            self._refused.pop(earlier, None)
        if len(self._refused) >= MAX_FILES:
            self._refused.clear()
            self._attempts.clear()
        self._refused[attempt], self._attempts[attempt[0]] = reason, attempt
        if len(self._refused) <= MAX_TOLD:
            log.warning("%r is not read: %s", attempt[0], reason)


def clean(folder: pathlib.Path, *, all_ended: bool = False) -> int:
    """Remove old pages of ended processes, or all of them, and what stands beside pages that are gone.

    Returns how many runs were forgotten.
    """
    kept = {"kept_pages": 0, "kept_seconds": 0.0} if all_ended else {}
    num_removed = reader.clean_stale(folder, **kept)  # type: ignore[arg-type]
    for path in (path for kind in BESIDE for path in folder.glob(kind)):
        if not (folder / f"{path.name.partition('.')[0]}.stats").exists():
            path.unlink(missing_ok=True)
    return num_removed


def _objection(name: str, info: os.stat_result) -> str:
    """Return why a file is not looked into; empty where it may be."""
    if not PAGE_NAME.fullmatch(name):
        return "its name is not <pid>-<start time>.stats"
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}"
    if not stat.S_ISREG(info.st_mode):
        return "it is no regular file"
    return "it is too large" if info.st_size > MAX_PAGE_BYTES else ""
