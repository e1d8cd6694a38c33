"""What benchmarks time in C: a small library, compiled when first used, over the arena inside DAF's own module."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import subprocess
from typing import Any

from cffi import FFI

from daf.allocator import _native
from daf.allocator.build_native import HERE as ALLOCATOR
from daf.allocator.build_native import declarations

HERE = pathlib.Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "benchmarks"
SOURCES = (HERE / "bench.c", HERE / "replay.c")
HEADERS = (HERE / "bench.h", HERE / "replay.h")


@functools.cache
def load() -> tuple[Any, Any]:
    """Return the library's `ffi` and `lib`. Its arenas are those of `daf.allocator`: cast their addresses."""
    ffi = FFI()
    ffi.cdef("typedef struct daf_arena daf_arena_t; typedef int daf_status_t;")
    ffi.cdef("".join(declarations(path) for path in HEADERS))
    return ffi, ffi.dlopen(str(_build()))


def _build() -> pathlib.Path:
    """Compile against the module as it is: linked by its path, it is the one that Python has loaded already."""
    content = b"".join(path.read_bytes() for path in (*SOURCES, *HEADERS, pathlib.Path(_native.__file__)))
    path = BUILD / f"native-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        command = ["cc", "-std=c11", "-O3", "-fPIC", "-shared", f"-I{ALLOCATOR}", f"-I{HERE}", *map(str, SOURCES)]
        subprocess.run([*command, _native.__file__, "-o", str(draft)], check=True)
        draft.replace(path)
    return path
