"""How cffi builds daf.allocator._native."""

import pathlib

from cffi import FFI

HERE = pathlib.Path(__file__).parent
SOURCES = sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*.c") if path.name != "_native.c")

ffibuilder = FFI()
ffibuilder.cdef("int daf_allocator_abi(void);")
ffibuilder.set_source(
    "daf.allocator._native",
    "int daf_allocator_abi(void) { return 1; }",
    sources=SOURCES,
    include_dirs=["allocator"],
    extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra"],
)
