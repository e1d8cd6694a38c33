"""The CPU front door: torch's CPU tensors come from an arena.

    install_cpu(arena)     from now on; tensors made before go back to where they came from
    uninstall_cpu()        from now on torch's own allocator again; the arena's tensors stay good and go back to it

Where the C++ shim cannot be built (no compiler), `install_cpu` says why in one warning and returns False: training goes
on with torch's own allocator, and only stashes live in the arena.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from typing import Any

from daf.allocator._native import ffi, lib
from daf.allocator.torch import shim
from daf.errors import DafError

_lock = threading.Lock()
_arena: Any = None  # the one in service: kept alive while torch may ask it
_CALLS = ("is_open", "alloc", "owns", "free", "explain")


class FrontDoorWarning(UserWarning):
    """A front door could not be installed; what DAF does instead is in the message."""


def install_cpu(arena: Any) -> bool:
    """Serve torch's CPU tensors from `arena`; False, with a warning, where that cannot be done here."""
    global _arena
    try:
        loaded = shim.load()
    except shim.ShimError as error:
        warnings.warn(
            f"DAF cannot take over torch's CPU allocator: {error}. Training goes on with torch's own; the budget then "
            "covers saved activations only.",
            FrontDoorWarning,
            stacklevel=2,
        )
        return False
    with _lock:
        if loaded.daf_torch_cpu_install(*map(_pointer, _CALLS)) != 0:
            raise DafError("another CPU allocator is installed in torch that cannot be wrapped (it has no raw deleter)")
        if lib.daf_door_open(ffi.cast("daf_arena_t *", arena.address)) != lib.DAF_OK:
            raise DafError(f"tensors of {lib.DAF_MAX_DOORS} closed arenas are still alive: let some of them go first")
        _arena = arena
    return True


def uninstall_cpu() -> None:
    """Give torch its own CPU allocator back."""
    global _arena
    with _lock:
        lib.daf_door_close()
        _arena = None


def cpu_arena() -> Any:
    """Return the arena that serves torch's CPU tensors now, or None."""
    return _arena if lib.daf_door_is_open() else None


def _pointer(name: str) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(ffi.cast("uintptr_t", ffi.addressof(lib, f"daf_door_{name}"))))
