"""The allocation profile: which lines and modules ask for the tensors that are alive, now and at the peak.

C follows the blocks (profile.h) and asks here which calls led to a request: `_look` gives each stack a number. A stack
is known by its code objects and instructions; files and lines are looked up when a profile is written.

    {"peak_bytes": ..., "stacks": {"7": {"frames": [[file, line, function], ...], "module": ..., "op": ...}},
     "peak": [[stack, bytes, blocks], ...], "blocks": [[address, bytes, micros, stack], ...],
     "ring": [[address, bytes, micros, stack, is_free], ...], ...}

Frames are outermost first, without DAF's own and torch's machinery. What backward asks for carries the frames of the
forward op that it is the backward of.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import struct
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

import daf.allocator
from daf.allocator._native import ffi, lib
from daf.allocator.pressure import hold_for_main_thread, stop_at_exit
from daf.errors import DafError

SUFFIX = ".profile"
LEAST_BYTES = 16 << 10
NUM_ENTRIES = 16384
MAX_DEPTH = 64
WRITE_SECONDS = 30.0
POLL_SECONDS = 0.25
_ROOT = pathlib.Path(daf.allocator.__file__).parents[1]
_OWN = tuple(str(_ROOT / room) + os.sep for room in ("allocator", "kernels", "quant"))
_LAYOUTS = {"daf_profile_share_t": struct.Struct("=QII"), "daf_profile_entry_t": struct.Struct("=QQQII")}

Key = tuple[object, ...]


class Places(Protocol):
    """Where in the model a request is made; told by the engine."""

    def here(self) -> tuple[str, str, int]:
        """The module's path, the op whose backward runs, and the number of the stack that its forward had."""

    def saw(self, stack: int) -> None:
        """A request of the forward had this stack."""


class Profile:
    """Numbers stacks while it is open. One is open at a time in a process."""

    def __init__(self, places: Places, path: pathlib.Path | None, asked: Callable[[], int] = lambda: 0) -> None:
        self.path = path
        self._asked = asked
        self._num_answered = 0
        self._places = places
        self._numbers: dict[Key, int] = {}
        self._keys: list[Key] = [()]
        self._codes: dict[int, CodeType] = {}  # held, so that an id stays one code's
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._is_over = False
        self._written_at = 0.0
        self._peak_written = -1

    def start(self, least_bytes: int = LEAST_BYTES) -> Profile:
        global _open
        stop_at_exit()
        if lib.daf_profile_open(least_bytes, NUM_ENTRIES, ffi.addressof(lib, "daf_look_from_python")) != lib.DAF_OK:
            raise DafError("allocations are profiled already in this process, or there is no memory for the profile")
        _open = self
        threading.Thread(target=self._keep_written, name="daf-profile", daemon=True).start()
        return self

    def stop(self) -> None:
        """Write the profile a last time and follow no more."""
        global _open
        if self._is_over:
            return
        self._is_over = True
        self._wake.set()
        self.write()
        if _open is self:
            _open = None
        lib.daf_profile_close()

    # -- looking

    def look(self, frame: FrameType | None) -> int:
        module, op, forward = self._places.here()
        parts: list[object] = [module, op, forward]
        codes = []
        for _ in range(MAX_DEPTH):
            if frame is None:
                break
            codes.append(frame.f_code)
            parts += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        key = tuple(parts)
        number = self._numbers.get(key)
        if number is None:
            number = self._new(key, codes)
        if number and not op:
            self._places.saw(number)
        return number

    def _new(self, key: Key, codes: list[CodeType]) -> int:
        if len(self._keys) >= lib.DAF_PROFILE_STACKS:
            return 0
        self._codes.update((id(code), code) for code in codes)
        self._keys.append(key)
        return self._numbers.setdefault(key, len(self._keys) - 1)

    # -- telling

    def write(self) -> pathlib.Path | None:
        """Write all that is known beside the stats page; None where there is no page, or no room on the disk."""
        if self.path is None or not lib.daf_profile_is_open():
            return None
        with self._lock, contextlib.suppress(OSError):
            draft = self.path.with_suffix(".profile-draft")
            draft.write_text(json.dumps(self.document(), separators=(",", ":")))
            draft.chmod(0o600)
            draft.replace(self.path)
            self._written_at = time.monotonic()
            return self.path
        return None

    def document(self) -> dict[str, Any]:
        state = ffi.new("daf_profile_state_t *")
        lib.daf_profile_tell(state)
        peak = _copied("daf_profile_share_t", lib.daf_profile_peak, lib.DAF_PROFILE_STACKS)
        blocks = _copied("daf_profile_entry_t", lib.daf_profile_blocks, 65536)
        ring = _copied("daf_profile_entry_t", lib.daf_profile_ring, NUM_ENTRIES)
        used = {row[1] for row in peak} | {row[3] for rows in (blocks, ring) for row in rows if row[3]}
        return {
            "time": time.time(),
            "peak_bytes": state.peak_bytes,
            "peak_at": state.peak_micros / 1e6,
            "live_bytes": state.live_bytes,
            "num_followed": state.num_followed,
            "num_looked": state.num_looked,
            "look_share": state.looked_ns / state.open_ns if state.open_ns else 0.0,
            "stacks": {str(number): self._stack(number) for number in sorted(used)},
            "peak": [[stack, num_bytes, count] for num_bytes, stack, count in peak],
            "blocks": [row[:4] for row in blocks],
            "ring": ring,
        }

    def _stack(self, number: int) -> dict[str, Any]:
        module, op, forward, *pairs = self._keys[number]
        frames, is_own = self._frames(pairs)
        if op and forward:
            made = self._stack(int(forward))  # type: ignore[call-overload]
            frames, module = made["frames"], made["module"]
        return {"frames": frames, "module": module, "op": op, "is_own": is_own}

    def _frames(self, pairs: list[object]) -> tuple[list[list[object]], bool]:
        """The frames worth showing, outermost first, and whether DAF itself asked."""
        found: list[list[object]] = []
        is_own = bool(pairs) and _is_own(self._codes[pairs[0]].co_filename)  # type: ignore[index]
        for code_id, lasti in zip(pairs[::2], pairs[1::2], strict=True):
            code = self._codes[code_id]  # type: ignore[index]
            if not _is_own(code.co_filename) and not (found and _is_machinery(code.co_filename)):
                found.append([code.co_filename, _line(code, int(lasti)), code.co_qualname])  # type: ignore[call-overload]
        return found[::-1], is_own

    def _keep_written(self) -> None:
        """When a watcher asks; and every so often where the peak is a new one, for a run that is killed."""
        while not self._wake.wait(POLL_SECONDS):
            state = ffi.new("daf_profile_state_t *")
            lib.daf_profile_tell(state)
            is_old = time.monotonic() - self._written_at > WRITE_SECONDS
            num_asked = self._asked()
            is_due = num_asked != self._num_answered or (is_old and state.peak_bytes != self._peak_written)
            if is_due and not self._is_over:
                self._num_answered, self._peak_written = num_asked, state.peak_bytes
                self.write()


_open: Profile | None = None


def open_profile() -> Profile | None:
    """Return the profile that is under way in this process, if any."""
    return _open


def _give_up(_kind: object, error: BaseException, _trace: object) -> int:
    """A stack too deep, a program that is going down: the block goes without. Ctrl-C is raised once C has returned.

    Not an `except`: a signal's handler runs before the first line of the callback, outside any `try` in it.
    """
    is_held = not isinstance(error, Exception) and hold_for_main_thread(error)
    return int(lib.DAF_PROFILE_INTERRUPTED) if is_held else 0


@ffi.def_extern(error=0, onerror=_give_up)  # type: ignore[untyped-decorator]
def daf_on_look(_num_bytes: int) -> int:
    """Return the number of the stack that asks for memory now; 0 where it cannot be told."""
    profile = _open
    return 0 if profile is None else profile.look(sys._getframe(1))


def _copied(kind: str, read: Any, cap: int) -> list[tuple[int, ...]]:
    rows = ffi.new(f"{kind}[]", cap)
    count = min(cap, read(rows, cap))
    layout = _LAYOUTS[kind]
    return list(layout.iter_unpack(bytes(ffi.buffer(rows))[: count * layout.size]))


def _line(code: CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            return line or code.co_firstlineno
    return code.co_firstlineno


def _is_own(filename: str) -> bool:
    return filename.startswith(_OWN)


def _is_machinery(filename: str) -> bool:
    """torch's and Python's: of these only the innermost says something, such as which loss it is."""
    return f"{os.sep}torch{os.sep}" in filename or filename.startswith("<frozen") or filename.endswith("runpy.py")
