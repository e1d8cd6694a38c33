"""How cffi builds daf.kernels._native. Instruction sets are chosen per function: one set of flags serves all files."""

import pathlib

from cffi import FFI

HERE = pathlib.Path(__file__).parent
SOURCES = sorted(str(path.relative_to(HERE.parent)) for path in HERE.rglob("*.c") if path.name != "_native.c")
HEADERS = [
    "../daf/status.h",
    "recompute/attention.h",
    "planes.h",
    "recompute/pointwise.h",
    "reduce/reduce.h",
    "threads.h",
]


def declarations(header: str) -> str:
    """Return what stands between the cdef marks of a header: C and cffi read the same lines."""
    return (HERE / header).read_text().split("/* cdef begin", 1)[1].split("*/", 1)[1].split("/* cdef end", 1)[0]


ffibuilder = FFI()
ffibuilder.cdef("\n".join(declarations(header) for header in HEADERS))
ffibuilder.set_source(
    "daf.kernels._native",
    "\n".join(f'#include "{header}"' for header in HEADERS),
    sources=SOURCES,
    depends=["daf/status.h", *sorted(str(path.relative_to(HERE.parent)) for path in HERE.rglob("*.h"))],
    include_dirs=["kernels"],
    # No contraction: a fused multiply-add rounds once where the definition rounds twice. Without errno and traps, which
    # nobody reads, roots and choices become vectors; their results are the same.
    extra_compile_args=[
        *("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
        *("-Wall", "-Wextra", "-Wno-sign-compare"),  # cffi's own code is no stricter; test_sources.py is
    ],
)
