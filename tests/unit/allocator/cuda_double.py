"""A private copy of DAF's C library over the double of the CUDA driver: other tests see neither."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import pathlib
import shutil
import subprocess
from typing import Any

from daf.allocator import _native
from tests.tools import require_tool

SOURCE = pathlib.Path(__file__).parents[2] / "doubles" / "cuda_driver.c"


class CudaDouble:
    """`lib` and `ffi` of the copy, and the double's own functions as attributes: submit, complete, fail, ..."""

    def __init__(self, folder: pathlib.Path) -> None:
        compiler = require_tool("cc", "gcc", "clang")
        library = folder / "libcuda_double.so"
        flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True)
        self._driver = ctypes.CDLL(str(library))
        self._driver.double_submit.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
        self._driver.double_set_total.argtypes = [ctypes.c_uint64]
        self._driver.double_mapped_bytes.restype = ctypes.c_uint64
        module = _load_copy(folder)
        self.lib: Any = module.lib
        self.ffi: Any = module.ffi
        assert self.lib.daf_cuda_load(str(library).encode()) == self.lib.DAF_OK

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, f"double_{name}")

    def stream(self, number: int) -> Any:
        return self.ffi.cast("daf_cuda_stream_t", number)

    def malloc(self, num_bytes: int, stream: int = 0, device: int = 0) -> int:
        return int(self.ffi.cast("uintptr_t", self.lib.daf_malloc(num_bytes, device, self.stream(stream))))

    def free(self, address: int, num_bytes: int = 0, stream: int = 0, device: int = 0) -> None:
        self.lib.daf_free(self.ffi.cast("void *", address), num_bytes, device, self.stream(stream))

    def record_stream(self, address: int, stream: int) -> None:
        self.lib.daf_record_stream(self.ffi.cast("void *", address), self.stream(stream))

    def open(self, budget_bytes: int, device: int = 0) -> Any:
        """Attach an arena of `budget_bytes`; returns its C handle, or None where the driver refused."""
        backend = self.lib.daf_backend_cuda(device)
        if backend == self.ffi.NULL:
            return None
        config = self.ffi.new("daf_arena_config_t *")
        config.budget_bytes, config.reserve_bytes, config.backend = budget_bytes, 1 << 30, backend
        out = self.ffi.new("daf_arena_t **")
        if self.lib.daf_arena_open(config, out) != self.lib.DAF_OK:
            return None
        assert self.lib.daf_cuda_attach(device, out[0]) == self.lib.DAF_OK
        return out[0]

    def counts(self, device: int = 0) -> Any:
        counts = self.ffi.new("daf_cuda_counts_t *")
        self.lib.daf_cuda_counts(device, counts)
        return counts

    def meter(self, device: int = 0) -> Any:
        meter = self.ffi.new("daf_meter_t *")
        self.lib.daf_cuda_meter(device, meter)
        return meter

    def is_valid(self, arena: Any) -> str:
        why = self.ffi.new("char[]", 256)
        return "" if self.lib.daf_arena_is_valid(arena, why, 256) else self.ffi.string(why).decode()


def _load_copy(folder: pathlib.Path) -> Any:
    """Another file is another library to the system, with variables of its own."""
    copy = folder / "_native.abi3.so"
    shutil.copy(str(_native.__file__), copy)
    loader = importlib.machinery.ExtensionFileLoader("daf.allocator._native", str(copy))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
