"""Tries a shim with torch, in a process that may crash: `python -P shim_trial.py FILE`.

The five functions that the shim asks for are written in Python here, over malloc: tensors must come from them and go
back to them, and a refusal must arrive as torch's own OutOfMemoryError. Exits with 0 if all of that holds.
"""

from __future__ import annotations

import ctypes
import os
import sys

_LIMIT_BYTES = 1 << 20
_malloc = ctypes.CDLL(None).aligned_alloc
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
_free = ctypes.CDLL(None).free
_free.argtypes = (ctypes.c_void_p,)


class Door:
    """What stands behind the shim in a real run is in C (cpu_door.c); this is the same in a few lines."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.num_freed = 0
        size, block, text = ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_char)
        self.functions = (  # kept here: the shim holds bare pointers to them
            ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1),
            ctypes.CFUNCTYPE(block, size)(self.alloc),
            ctypes.CFUNCTYPE(ctypes.c_int, block)(lambda address: int(address in self.blocks)),
            ctypes.CFUNCTYPE(None, block)(self.free),
            ctypes.CFUNCTYPE(None, size, text, size)(self.explain),
        )

    def alloc(self, num_bytes: int) -> int | None:
        if num_bytes > _LIMIT_BYTES:
            return None
        address = int(_malloc(64, -(-num_bytes // 64) * 64))
        self.blocks.add(address)
        return address

    def free(self, address: int) -> None:
        self.blocks.discard(address)
        self.num_freed += 1
        _free(address)

    def explain(self, _num_bytes: int, text: ctypes._Pointer[ctypes.c_char], capacity: int) -> None:
        message = b"refused on purpose\0"
        ctypes.memmove(text, message, min(len(message), capacity))


def main(path: str) -> None:
    import torch

    torch.set_num_threads(1)
    ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"), mode=ctypes.RTLD_GLOBAL)
    before, door = torch.ones(64), Door()
    if ctypes.CDLL(path).daf_torch_cpu_install(*door.functions) != 0:
        raise SystemExit("torch's CPU allocator cannot be wrapped")
    x = torch.arange(1000.0)
    if x.data_ptr() not in door.blocks or float((x * 2).sum()) != 999000.0:
        raise SystemExit("torch's tensors do not come from the shim")
    try:
        torch.empty(2 * _LIMIT_BYTES)
        raise SystemExit("a refused request was not refused")
    except torch.OutOfMemoryError as error:
        if "refused on purpose" not in str(error):
            raise SystemExit("a refusal lost its report") from None
    del x, before
    if door.num_freed == 0:
        raise SystemExit("torch's tensors do not go back to the shim")
    sys.stdout.write("works\n")
    sys.stdout.flush()
    os._exit(0)  # the functions above must outlive every tensor; the interpreter's end does not promise that


if __name__ == "__main__":
    main(sys.argv[1])
