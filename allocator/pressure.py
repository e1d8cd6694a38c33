"""Asking Python for memory from inside an allocation: the body of the callback that C calls when a request is short.

C knows an arena by its address and so does the table here. An address is looked up anew at each call, so a callback
that is taken away while another thread waits for the interpreter's lock is simply not found.
"""

from __future__ import annotations

import atexit
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

from daf.allocator._native import ffi, lib

PressureCallback = Callable[[int], bool]

_callbacks: dict[int, PressureCallback] = {}
_stored: list[BaseException] = []
_failed: set[type[BaseException]] = set()


def set_callback(raw: Any, callback: PressureCallback | None) -> None:
    """Have requests of the C arena `raw` that do not fit call `callback`; None: nobody."""
    address = int(ffi.cast("uintptr_t", raw))
    if callback is None:
        lib.daf_arena_set_pressure(raw, ffi.NULL, ffi.NULL)
        _callbacks.pop(address, None)
        return
    stop_at_exit()
    _callbacks[address] = callback
    lib.daf_arena_set_pressure(raw, ffi.addressof(lib, "daf_ask_python"), ffi.cast("void *", address))


def raise_stored() -> None:
    """Raise what came up in a callback and was not the callback's own: Ctrl-C, an exit by a signal's handler."""
    if _stored:
        raise _stored.pop()


def _interrupted(_kind: object, error: BaseException, _trace: object) -> int:
    """A signal's handler raised before the first line of the callback, where no `try` of ours is entered yet."""
    return -1 if not isinstance(error, Exception) and hold_for_main_thread(error) else 0


@ffi.def_extern(error=0, onerror=_interrupted)  # type: ignore[untyped-decorator]
def daf_on_pressure(context: Any, missing_bytes: int) -> int:
    """Return 1 where something may have been freed, 0 where not, -1 where an exception waits to be raised."""
    callback = _callbacks.get(int(ffi.cast("uintptr_t", context)))
    if callback is None:
        return 0
    try:
        return int(bool(callback(missing_bytes)))
    except Exception as error:
        _say_once(error)
        return 0
    except BaseException as error:
        return -1 if hold_for_main_thread(error) else 0


def hold_for_main_thread(error: BaseException) -> bool:
    """Keep what a signal's handler raised inside a callback until it can be raised; False outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    _stored.append(error)
    return True


def _say_once(error: Exception) -> None:
    if type(error) in _failed:
        return
    _failed.add(type(error))
    warnings.warn(
        f"DAF could not free memory when it was asked to: {type(error).__name__}: {error}. Planes are dropped instead.",
        RuntimeWarning,
        stacklevel=3,
    )


@functools.cache
def stop_at_exit() -> None:
    """While the interpreter goes down no thread may wait for its lock; C lets those that run finish first."""
    atexit.register(lib.daf_pressure_stop)
