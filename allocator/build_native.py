"""How cffi builds daf.allocator._native. The declarations are the headers themselves: C and cffi read the same text."""

import pathlib
import re

from cffi import FFI

HERE = pathlib.Path(__file__).parent
SOURCES = sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*.c") if path.name != "_native.c")
HEADERS = ("backend.h", "arena.h", "bench.h", "meter.h", "door.h", "trace.h", "replay.h", "cuda_door.h")


def declarations(name: str) -> str:
    """A header as cffi takes it: constants stay, other preprocessor lines and comments go."""
    text = re.sub(r"/\*.*?\*/", "", (HERE / name).read_text(), flags=re.DOTALL)
    kept = [
        line for line in text.split("\n") if not line.startswith("#") or re.match(r"#define \w+ \d+$", line.strip())
    ]
    return "\n".join(kept)


ffibuilder = FFI()
ffibuilder.cdef("".join(declarations(name) for name in HEADERS))
ffibuilder.set_source(
    "daf.allocator._native",
    "".join(f'#include "{name}"\n' for name in HEADERS),
    sources=SOURCES,
    depends=sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*.h")),
    include_dirs=["allocator"],
    extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-fexceptions"],
    libraries=["pthread", "m", "dl"],
)
