# mypy: ignore-errors
"""Triton twin of dual.c: block averages in bf16. The rest is mean-split's, through a float32 tensor beside."""

from __future__ import annotations

import triton
import triton.language as tl

from daf.kernels.triton.escape import is_regular
from daf.kernels.triton.numbers import from_bf16, load_bytes, load_value, store_bytes, store_value, to_bf16

SIDE = tl.constexpr(8)
BLOCKS = tl.constexpr(128)  # of one program
ELEMENTS = tl.constexpr(1024)


@triton.jit
def average_kernel(src, table, rows, cols, bands, across, num_blocks, offset, WIDTH: tl.constexpr,
                   DTYPE: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """BLOCKS averages of regular elements, zero where one is; summed down columns first; zero to their unit's end."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    band = block // across
    top = band % bands * SIDE
    left = block % across * WIDTH
    first = (band // bands * rows + top) * cols + left
    total = tl.zeros((BLOCKS,), dtype=tl.float32)
    count = tl.zeros((BLOCKS,), dtype=tl.int32)
    zeros = tl.zeros((BLOCKS,), dtype=tl.int32)
    for c in tl.static_range(0, WIDTH):
        part = tl.zeros((BLOCKS,), dtype=tl.float32)
        for r in tl.static_range(0, SIDE):
            keep = (block < num_blocks) & (top + r < rows) & (left + c < cols)
            x = load_value(src, first + r * cols + c, keep, DTYPE)
            regular = keep & is_regular(x)
            part += tl.where(regular, x, 0.0)
            count += regular.to(tl.int32)
            zeros += (keep & (x == 0.0)).to(tl.int32)
        total += part
    half = to_bf16(tl.div_rn(total, tl.maximum(count, 1).to(tl.float32)))
    half = tl.where((block < num_blocks) & (zeros == 0), half, 0)
    store_bytes(table, 0, offset + 2 * block, half, block * 2 < (num_blocks * 2 + 31) // 32 * 32, SHIFT, tl.int16)


@triton.jit
def average_at(table, index, keep, rows, cols, bands, across, offset, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    """The average of each element's block."""
    row = index // cols
    band = row // rows * bands + row % rows // SIDE
    place = offset + 2 * (band * across + index % cols // WIDTH)
    return from_bf16(load_bytes(table, 0, place, keep, SHIFT, tl.uint16))


@triton.jit
def take_kernel(src, rest, table, numel, rows, cols, bands, across, offset, WIDTH: tl.constexpr, DTYPE: tl.constexpr,
                SHIFT: tl.constexpr):  # fmt: skip
    """What the averages leave of ELEMENTS elements."""
    index = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    keep = index < numel
    average = average_at(table, index, keep, rows, cols, bands, across, offset, WIDTH, SHIFT)
    tl.store(rest + index, load_value(src, index, keep, DTYPE) - average, mask=keep)


@triton.jit
def add_kernel(dst, rest, table, numel, rows, cols, bands, across, offset, WIDTH: tl.constexpr, DTYPE: tl.constexpr,
               SHIFT: tl.constexpr):  # fmt: skip
    """ELEMENTS elements from their averages and the rest."""
    index = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    keep = index < numel
    average = average_at(table, index, keep, rows, cols, bands, across, offset, WIDTH, SHIFT)
    store_value(dst, index, average + tl.load(rest + index, mask=keep, other=0.0), keep, DTYPE)
