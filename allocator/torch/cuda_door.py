"""The CUDA front door: torch's CUDA memory comes from an arena, through torch's CUDAPluggableAllocator.

    install_cuda(arena)     before any CUDA use: torch cannot change its allocator later

What torch cannot do with a pluggable allocator is said once, by a warning: `cudnn.benchmark` (switched off), recording
CUDA graphs (their memory is kept for good). Sharing CUDA tensors with other processes torch refuses itself.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

from daf.allocator._native import ffi, lib
from daf.allocator.arena import Arena
from daf.allocator.torch import shim
from daf.allocator.torch.cpu_door import FrontDoorWarning
from daf.errors import DafError

_NOTICES = {
    0: "a CUDA graph is being recorded: the memory it uses stays reserved for it until the process ends",
}
_kept: list[Any] = []  # torch and C hold pointers to these for the life of the process
_arenas: dict[int, Arena] = {}  # by device
_name = ""  # what the run is called on its pages


def library_path() -> str:
    """Return the shared library that holds daf_malloc and daf_free, for CUDAPluggableAllocator."""
    import daf.allocator._native as native

    return str(native.__file__)


def why_no_cuda() -> str:
    """Return why device memory cannot be managed here; empty where it can."""
    return "" if lib.daf_cuda_load(ffi.NULL) == lib.DAF_OK else ffi.string(lib.daf_cuda_why_not()).decode()


def cuda_arena(budget_bytes: int, device: int = 0, **settings: Any) -> Arena:
    """Return an arena on the memory of a CUDA device. Keywords are Arena's."""
    backend = lib.daf_backend_cuda(device)
    if backend == ffi.NULL:
        raise DafError(f"no memory of CUDA device {device}: {why_no_cuda() or 'there is no such device'}")
    return Arena(budget_bytes, backend=int(ffi.cast("uintptr_t", backend)), **settings)


def install_cuda(arena: Arena | None = None, device: int = 0) -> bool:
    """Serve torch's CUDA tensors on `device` from `arena`, and other devices from arenas of their own.

    Without an arena every device gets its own, with nine tenths of it for a budget. False, with a warning, where
    there is no CUDA.
    """
    import torch

    if reason := why_no_cuda() or _why_not_torch(torch):
        warnings.warn(f"DAF cannot take over torch's CUDA allocator: {reason}", FrontDoorWarning, stacklevel=2)
        return False
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise DafError("torch has used CUDA already: install DAF's allocator before the first CUDA call")
    if arena is not None and lib.daf_cuda_attach(device, ffi.cast("daf_arena_t *", arena.address)) != lib.DAF_OK:
        raise DafError(f"CUDA device {device} is served by another arena already")
    _warn_of_limits(torch)
    _raise_torchs_error()
    _plug_in(torch)
    if arena is not None:
        _arenas[device] = arena
    return True


def maybe_install_cuda(budget_bytes: int = 0, page_bytes: int = 0, *, name: str = "") -> bool:
    """Install the door where there is CUDA and it is not installed yet; say nothing where there is none.

    Every device that torch then uses gets an arena of that budget, 0 being nine tenths of the device, when it is first
    used: a rank of a job opens none on the others' devices. False, with a warning, where torch has used CUDA already.
    """
    global _name
    import torch

    if why_no_cuda() or _why_not_torch(torch):
        return False
    lib.daf_cuda_set_own(budget_bytes, page_bytes)
    _name = name
    if _is_installed():
        return True
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        _tell("torch has used CUDA already, so its memory stays with torch's own allocator; open DAF earlier")
        return False
    return install_cuda()


def device_arena(device: int) -> Arena | None:
    """Return the arena that torch's memory on a CUDA device comes from, published; None where it is not DAF's."""
    if device not in _arenas:
        raw = lib.daf_cuda_arena(device)
        if raw == ffi.NULL:
            return None
        _arenas[device] = Arena.of(int(ffi.cast("uintptr_t", raw)), name=_name, device=f"cuda:{device}")
    return _arenas[device]


def home_stream(device: int) -> int | None:
    """Return the stream that a device's pages are ordered on, as torch's raw number; None where there is none yet."""
    stream = ffi.new("daf_cuda_stream_t *")
    return int(ffi.cast("uintptr_t", stream[0])) if lib.daf_cuda_home(device, stream) else None


def _is_installed() -> bool:
    return len(_kept) > 0


def _why_not_torch(torch: Any) -> str:
    return "" if hasattr(torch._C, "_cuda_customAllocator") else "this torch was built without CUDA"


def _plug_in(torch: Any) -> None:
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library_path(), "daf_malloc", "daf_free")
    plug = allocator.allocator()
    for setter, name in (
        ("set_init_fn", "daf_init"),
        ("set_reset_fn", "daf_reset"),
        ("set_record_stream_fn", "daf_record_stream"),
        ("set_memory_fraction_fn", "daf_memory_fraction"),
        ("set_base_alloc_fn", "daf_base_alloc"),
    ):
        if hasattr(plug, setter):
            getattr(plug, setter)(int(ffi.cast("uintptr_t", ffi.addressof(lib, name))))
    torch.cuda.memory.change_current_allocator(allocator)
    _kept.append(allocator)


def _warn_of_limits(torch: Any) -> None:
    if torch.backends.cudnn.benchmark:
        torch.backends.cudnn.benchmark = False
        _tell("cudnn.benchmark asks the allocator what a pluggable one cannot answer, so it is switched off")
    notice = ffi.callback("daf_notice_fn", lambda kind: _tell(_NOTICES[kind]))
    lib.daf_cuda_set_notice(notice)
    _kept.append(notice)


def _tell(text: str) -> None:
    warnings.warn(f"DAF on CUDA: {text}", FrontDoorWarning, stacklevel=3)


def _raise_torchs_error() -> None:
    """torch takes NULL for memory: only an exception thrown in C++ stops it. That needs the shim, hence a compiler."""
    try:
        loaded = shim.load()
    except shim.ShimError as error:
        _tell(f"running out of memory will end the process, since torch's error cannot be raised: {error}")
        return
    raise_error = ctypes.cast(loaded.daf_torch_raise_out_of_memory, ctypes.c_void_p).value
    lib.daf_cuda_set_raise(ffi.cast("daf_raise_fn", raise_error))
