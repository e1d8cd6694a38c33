"""The codecs from Python: what to code (Spec), how it lies in memory (Coder), and planes of one's own (HostPlanes).

Addresses are plain ints, so that no caller needs torch or cffi for them. Each of encode and decode is one C call
without the GIL.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable
from typing import Any

from daf.kernels._native import ffi, lib


def _names(name_at: Callable[[int], Any]) -> tuple[str, ...]:
    """Return the names that a C list gives, up to its NULL."""
    found = itertools.takewhile(lambda name: name != ffi.NULL, map(name_at, itertools.count()))
    return tuple(bytes(ffi.string(name)).decode() for name in found)


CODECS = _names(lib.daf_codec_at)
SHAPES = {"run": lib.DAF_RUN, "column": lib.DAF_COLUMN}
DTYPES = {
    "float32": lib.DAF_FLOAT32, "bfloat16": lib.DAF_BFLOAT16, "float16": lib.DAF_FLOAT16,
    "int64": lib.DAF_INT64, "int32": lib.DAF_INT32, "int16": lib.DAF_INT16, "int8": lib.DAF_INT8,
    "uint8": lib.DAF_UINT8, "bool": lib.DAF_BOOL,
    "float64": lib.DAF_BYTES8, "complex64": lib.DAF_BYTES8, "uint64": lib.DAF_BYTES8, "complex128": lib.DAF_BYTES16,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """Which codec, how many planes, which group shape.

    ============ ======== ============ ======================================================
    codec        bits     group        elements
    ============ ======== ============ ======================================================
    raw          any      run          any; the bytes as they are
    int          1-64     run          integers, exact
    bool         1        run          bytes, zero or not
    mask         1        run          floats that are zero or one other value, exact
    minmax       1-8      run, column  floats, rounded to the nearest level
    minmax-sr    1-8      run, column  floats, rounded up or down at random: unbiased
    meansplit    1-4      run, column  floats, each part of a group to its mean
    support      0-4      run, column  floats; zeros exact, the others as meansplit
    logprob      2-8      run          floats that are rows of log-softmax outputs: the two likeliest exact, the others
                                       to a few per cent of their probability; cols: classes
    dual         1-4      run, column  floats; averages of 8 x 8 blocks (column: of 8 rows), the rest as meansplit
    ============ ======== ============ ======================================================
    """

    codec: str
    bits: int
    group: str = "run"

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise ValueError(f"{self.codec!r} is not a codec; right would be one of {', '.join(CODECS)}")
        if self.group not in SHAPES:
            raise ValueError(f"{self.group!r} is not a group shape; right would be run or column")


class StashError(ValueError):
    """Planes that cannot be decoded: truncated, of another coder, or no planes at all."""


def _check(status: int, what: str) -> None:
    if status == lib.DAF_OK:
        return
    if status == lib.DAF_BAD_SPEC:
        raise ValueError(f"{what}: this codec, width, group shape, dtype and size do not go together")
    if status == lib.DAF_OUT_OF_RANGE:
        raise ValueError(
            f"{what}: integers that do not fit the planes (choose_bits names the width they need), or a mask "
            "with more than one value besides zero"
        )
    if status == lib.DAF_FOREIGN:
        raise StashError(f"{what}: the stash was written by another coder, or not completely")
    raise StashError(f"{what}: page size, page table or number of streams is not that of such a stash")


class Coder:
    """One spec for tensors of one dtype and size: knows the streams' sizes, encodes and decodes.

    Holds no memory of the tensor's or the planes', so one coder serves any number of threads and stashes.
    """

    __slots__ = ("_native", "dtype", "numel", "spec", "stream_bytes")

    def __init__(self, spec: Spec, dtype: str, numel: int, cols: int = 0, rows: int = 0) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"{dtype!r} is not a dtype of the codecs; right would be one of {', '.join(DTYPES)}")
        if numel < 0 or cols < 0 or rows < 0:
            raise ValueError(f"numel={numel}, cols={cols} and rows={rows} must not be negative")
        self.spec, self.dtype, self.numel = spec, dtype, numel
        self._native = ffi.new("daf_coder_t *")
        self._native.numel, self._native.cols, self._native.rows = numel, cols, rows
        self._native.bits, self._native.shape, self._native.dtype = spec.bits, SHAPES[spec.group], DTYPES[dtype]
        _heed_wish()
        _check(lib.daf_coder_init(self._native, spec.codec.encode()), f"{spec} of {numel} {dtype}, cols={cols}")
        self.stream_bytes = tuple(self._native.stream_bytes[0 : self._native.num_streams])

    def __repr__(self) -> str:
        return f"Coder({self.spec}, {self.dtype!r}, numel={self.numel}, stream_bytes={self.stream_bytes})"

    @property
    def num_bytes(self) -> int:
        """Bytes of all streams together, before they are cut into pages."""
        return sum(self.stream_bytes)

    def encode(self, src_ptr: int, planes_addr: int, seed: int = 0) -> None:
        """Write every stream from the numel elements at src_ptr. The same seed gives the same bytes."""
        src, planes = ffi.cast("void *", src_ptr), ffi.cast("daf_planes_t *", planes_addr)
        status = lib.daf_encode(self._native, src, planes, seed & 0xFFFFFFFFFFFFFFFF)
        if status:
            _check(status, "encode")

    def decode(self, dst_ptr: int, planes_addr: int) -> None:
        """Write the numel elements at dst_ptr from the streams that are live."""
        dst, planes = ffi.cast("void *", dst_ptr), ffi.cast("daf_planes_t *", planes_addr)
        status = lib.daf_decode(self._native, dst, planes)
        if status:
            _check(status, "decode")

    def distortion(self, src_ptr: int, max_groups: int = 64) -> tuple[float, ...]:
        """Return the mean squared error with 0, 1, ... bits planes, from at most max_groups evenly spaced groups."""
        return self._distortion(src_ptr, max_groups)[0]

    def relative_distortion(self, src_ptr: int, max_groups: int = 64) -> tuple[float, ...]:
        """Return the same over the mean square of the same groups' elements; nothing where these are all zero."""
        errors, mean_square = self._distortion(src_ptr, max_groups)
        return tuple(error / mean_square for error in errors) if mean_square else ()

    def _distortion(self, src_ptr: int, max_groups: int) -> tuple[tuple[float, ...], float]:
        mse, mean_square = ffi.new("double[]", lib.DAF_MAX_STREAMS), ffi.new("double *")
        src = ffi.cast("void *", src_ptr)
        _check(lib.daf_distortion(self._native, src, max_groups, mse, mean_square), "distortion")
        return tuple(mse[0 : len(self.stream_bytes)]), float(mean_square[0])


@functools.lru_cache(maxsize=4096)
def coder(spec: Spec, dtype: str, numel: int, cols: int = 0, rows: int = 0) -> Coder:
    """Return the coder of `numel` elements, made once per combination.

    cols: elements of a row, for column groups. rows: rows of one map, for dual.
    """
    return Coder(spec, dtype, numel, cols, rows)


def choose_bits(dtype: str, numel: int, src_ptr: int) -> int:
    """Return the planes that codec int needs for numel elements at src_ptr."""
    bits = ffi.new("uint32_t *")
    _check(lib.daf_choose_bits(DTYPES[dtype], numel, ffi.cast("void *", src_ptr), bits), f"choose_bits of {dtype}")
    return int(bits[0])


@functools.cache
def _heed_wish() -> None:
    """Say once that DAF_ISA names nothing that this processor has: the C code then takes the best."""
    wish = os.environ.get("DAF_ISA", "")
    if wish and wish not in available_isas():
        warnings.warn(
            f"DAF_ISA={wish!r} is not an instruction set of this processor, which has {', '.join(available_isas())}; "
            f"DAF uses {isa()}",
            stacklevel=4,
        )


def isa() -> str:
    """Return the instruction set in force: scalar, avx2, avx512 or neon."""
    return bytes(ffi.string(lib.daf_isa())).decode()


def available_isas() -> list[str]:
    """Return the instruction sets that this processor has, best first."""
    return list(_names(lib.daf_isa_at))


def set_isa(name: str) -> None:
    """Use another instruction set from now on, for tests and benchmarks; users set DAF_ISA."""
    if lib.daf_set_isa(name.encode()):
        raise ValueError(f"{name!r} is not an instruction set of this processor; it has {', '.join(available_isas())}")


class HostPlanes:
    """Planes in ordinary memory, for tests and benchmarks: one page table over one buffer, nothing shared.

    The pages of a stream follow each other, but nothing may rely on it: an arena's do not.
    """

    def __init__(self, stream_bytes: tuple[int, ...], page_bytes: int = 4096, base: int = 0) -> None:
        """base: an address on a device to lay the pages out from, which cannot be read or written here."""
        counts = [-(-size // page_bytes) for size in stream_bytes]
        total = sum(counts)
        self._buffer = ffi.new("uint8_t[]", 0 if base else total * page_bytes + page_bytes)
        start = base or -(-int(ffi.cast("uintptr_t", self._buffer)) // page_bytes) * page_bytes
        pages = [ffi.cast("uint8_t *", start + i * page_bytes) for i in range(total)]
        self._pages = ffi.new("uint8_t *[]", pages or [ffi.NULL])
        self._view = ffi.new("daf_planes_t *")
        self._view.pages, self._view.page_bytes = self._pages, page_bytes
        self._view.num_streams = len(stream_bytes)
        self._view.first_page[0 : len(counts)] = [sum(counts[:s]) for s in range(len(counts))]
        self._stream_bytes = stream_bytes

    @property
    def address(self) -> int:
        """Address of the daf_planes_t, valid as long as this object lives."""
        return int(ffi.cast("uintptr_t", self._view))

    @property
    def num_streams(self) -> int:
        """Live streams."""
        return int(self._view.num_streams)

    def drop(self, count: int = 1) -> None:
        """Drop the last `count` live streams; stream 0 stays."""
        if not 0 <= count < self.num_streams:
            raise ValueError(f"cannot drop {count} of {self.num_streams} streams: stream 0 stays")
        self._view.num_streams -= count

    def stream(self, index: int) -> bytes:
        """Return a copy of one stream's bytes."""
        page_bytes, size = int(self._view.page_bytes), self._stream_bytes[index]
        first = int(self._view.first_page[index])
        pages = [ffi.buffer(self._pages[first + i], page_bytes)[:] for i in range(-(-size // page_bytes))]
        return b"".join(pages)[:size]

    def write(self, index: int, content: bytes) -> None:
        """Overwrite one stream's bytes from its start."""
        page_bytes, first = int(self._view.page_bytes), int(self._view.first_page[index])
        for i in range(0, len(content), page_bytes):
            part = content[i : i + page_bytes]
            ffi.memmove(self._pages[first + i // page_bytes], part, len(part))
