"""More elements than 31 bits can count, in little memory: addresses are many, but all lead to the same few pages."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from daf.kernels import Coder, HostPlanes, Spec, choose_bits, coder
from daf.kernels._native import ffi

PERIOD = 1 << 24  # elements after which source and result begin anew
TIMES = (1 << 31) // PERIOD + 1
PAGE = 4096

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000


class Repeated:
    """One small file, mapped TIMES times, each mapping behind the one before."""

    def __init__(self, num_bytes: int) -> None:
        self.size = num_bytes * TIMES
        anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self.address = libc.mmap(None, self.size, 0, anywhere, -1, 0)
        file = os.memfd_create("repeated")
        os.ftruncate(file, num_bytes)
        for start in range(self.address, self.address + self.size, num_bytes):
            access = mmap.PROT_READ | mmap.PROT_WRITE
            assert libc.mmap(start, num_bytes, access, mmap.MAP_SHARED | MAP_FIXED, file, 0) == start
        os.close(file)
        self.bytes = np.frombuffer((ctypes.c_uint8 * num_bytes).from_address(self.address), np.uint8)

    def close(self) -> None:
        libc.munmap(self.address, self.size)


@pytest.fixture
def maps() -> Iterator[list[Repeated]]:
    made: list[Repeated] = []
    yield made
    for one in made:
        one.close()


def place_of(page: int, stream: int, large: Coder, small: Coder) -> int:
    """The page of one period that stands for a page of all: planes and headers repeat, each by themselves."""
    num_planes = large.spec.bits if large.spec.codec == "int" else 1
    in_planes, in_small = (int(one._native.head_offset[stream]) // PAGE for one in (large, small))
    if page < in_planes:
        plane, place = divmod(page, in_planes // num_planes)
        return plane * in_small // num_planes + place % (in_small // num_planes)
    in_heads = max((small.stream_bytes[stream] - 32 * (stream == 0)) // PAGE - in_small, 1)
    return in_small + (page - in_planes) % in_heads


def repeated_planes(large: Coder, small: Coder) -> tuple[Any, Any]:
    """Return planes of `large` over the pages of one period, the tag on a page of its own, and what must stay alive."""
    memory = HostPlanes(tuple(size + PAGE for size in small.stream_bytes), PAGE)
    own = ffi.cast("daf_planes_t *", memory.address)
    view, pages, tag = ffi.new("daf_planes_t *"), list[Any](), ffi.new("uint8_t[]", 2 * PAGE)
    for s, size in enumerate(large.stream_bytes):
        view.first_page[s] = len(pages)
        places = [place_of(i, s, large, small) for i in range(-(-size // PAGE))]
        pages += [own.pages[own.first_page[s] + place] for place in places]
    last = view.first_page[1] if len(large.stream_bytes) > 1 else len(pages)
    pages[last - 1] = tag + -int(ffi.cast("uintptr_t", tag)) % PAGE
    table = ffi.new("uint8_t *[]", pages)
    view.pages, view.page_bytes, view.num_streams = table, PAGE, len(large.stream_bytes)
    return view, (memory, table, tag)


@pytest.mark.parametrize(
    ("spec", "dtype", "cols"),
    [
        (Spec("int", 8), "uint8", 0),
        (Spec("meansplit", 1), "bfloat16", 0),
        (Spec("meansplit", 1, "column"), "bfloat16", 64),
    ],
)
def test_more_elements_than_31_bits_can_count_come_back_right(
    maps: list[Repeated], spec: Spec, dtype: str, cols: int
) -> None:
    itemsize = 1 if dtype == "uint8" else 2
    large, small = coder(spec, dtype, PERIOD * TIMES, cols), coder(spec, dtype, PERIOD, cols)
    maps += [Repeated(PERIOD * itemsize), Repeated(PERIOD * itemsize)]
    source, result = maps
    source.bytes[:] = elements(dtype)
    view, _memory = repeated_planes(large, small)
    large.encode(source.address, int(ffi.cast("uintptr_t", view)))
    large.decode(result.address, int(ffi.cast("uintptr_t", view)))
    planes, expected = HostPlanes(small.stream_bytes), np.empty_like(source.bytes)
    small.encode(source.address, planes.address)
    small.decode(expected.ctypes.data, planes.address)
    assert np.array_equal(result.bytes, expected)
    assert dtype != "uint8" or choose_bits(dtype, PERIOD * TIMES, source.address) == 8


def elements(dtype: str) -> npt.NDArray[np.uint8]:
    random = np.random.default_rng(0)
    if dtype == "uint8":
        return random.integers(0, 256, PERIOD, dtype=np.uint8)
    floats = random.standard_normal(PERIOD, dtype=np.float32)
    return (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def test_more_elements_than_any_machine_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="do not go together"):
        coder(Spec("bool", 1), "bool", 2**49)
