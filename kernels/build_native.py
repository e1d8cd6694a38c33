"""How cffi builds daf.kernels._native. Instruction sets are chosen per function: one set of flags serves all files."""

import pathlib

from cffi import FFI

HERE = pathlib.Path(__file__).parent
SOURCES = sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*.c") if path.name != "_native.c")

ffibuilder = FFI()
ffibuilder.cdef("int daf_kernels_abi(void);")
ffibuilder.set_source(
    "daf.kernels._native",
    "int daf_kernels_abi(void) { return 1; }",
    sources=SOURCES,
    include_dirs=["kernels"],
    extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra"],
)
