"""How cffi builds daf.allocator._native. The declarations are the headers themselves: C and cffi read the same text."""

import pathlib
import re

from cffi import FFI

HERE = pathlib.Path(__file__).parent
SOURCES = sorted(str(path.relative_to(HERE.parent)) for path in HERE.rglob("*.c") if path.name != "_native.c")
HEADERS = (
    "../daf/status.h",
    "os/backend.h",
    "arena.h",
    "os/ending.h",
    "stats/meter.h",
    "torch/cpu_door.h",
    "trace/trace.h",
    "trace/profile.h",
    "torch/cuda_door.h",
)


def declarations(header: pathlib.Path) -> str:
    """A header as cffi takes it: constants stay, other preprocessor lines and comments go."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    kept = [
        line for line in text.split("\n") if not line.startswith("#") or re.match(r"#define \w+ \d+$", line.strip())
    ]
    return "\n".join(kept)


ffibuilder = FFI()
ffibuilder.cdef("".join(declarations(HERE / name) for name in HEADERS))
ffibuilder.cdef("""
    extern "Python" int daf_on_pressure(void *, uint64_t);
    extern "Python" void daf_on_out_of_memory(daf_arena_t *, uint64_t, daf_advice_t *);
    extern "Python" uint32_t daf_on_look(uint64_t);
    uint32_t daf_look_from_python(uint64_t num_bytes);
    int daf_ask_python(void *context, uint64_t missing_bytes);
    void daf_ask_advice(daf_arena_t *arena, uint64_t num_bytes, daf_advice_t *advice);
""")
ffibuilder.set_source(
    "daf.allocator._native",
    "".join(f'#include "{name}"\n' for name in (*HEADERS, "python_glue.h")),
    sources=SOURCES,
    depends=["daf/status.h", *sorted(str(path.relative_to(HERE.parent)) for path in HERE.rglob("*.h"))],
    include_dirs=["allocator"],
    extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-fexceptions"],
    libraries=["pthread", "m", "dl"],
)
