# mypy: ignore-errors
"""Triton twin of codec_minmax.c: min/max affine, to the nearest or stochastic, run and column groups.

Run groups choose and pack in one pass. Column groups are chosen first: bits stand in memory order, so a unit of them
mixes columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from daf.kernels.triton_escape import escape_bit, escape_mean, escape_value, is_regular
from daf.kernels.triton_numbers import (
    BF16_NAN,
    GROUP,
    LEAST_SCALE,
    ROWS,
    from_bf16,
    group_key,
    group_of,
    load_bit,
    load_bytes,
    load_value,
    place_of,
    position_of,
    random16,
    store_bytes,
    store_plane,
    store_tag,
    store_value,
    to_bf16_down,
    to_bf16_up,
)


@triton.jit
def choose_qparams(x, keep, BITS: tl.constexpr):
    """Low and scale [ROWS] as bf16 bits of groups [ROWS, 256]; NaN for a group that must escape."""
    low = tl.min(tl.where(keep, x, float("inf")), axis=1) + 0.0
    high = tl.max(tl.where(keep, x, float("-inf")), axis=1)
    head_low = to_bf16_down(low)
    scale = tl.div_rn(high - from_bf16(head_low), (1 << BITS) - 1.0)
    head_scale = tl.where(scale < LEAST_SCALE, 0, to_bf16_up(scale))
    escaped = tl.max((keep & ~is_regular(x)).to(tl.int32), axis=1) > 0
    return tl.where(escaped, BF16_NAN, head_low), head_scale, escaped


@triton.jit
def choose_groups(src, table, group, numel, cols, num_groups, head_offset,
                  BITS: tl.constexpr, DTYPE: tl.constexpr, COLUMN: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """Write the headers of groups [ROWS]; return their elements and header words. Past the last group all is zero."""
    first, stride, num = place_of(group, numel, cols, COLUMN)
    j = tl.arange(0, GROUP)[None, :]
    keep = (group < num_groups)[:, None] & (j < num[:, None])
    x = load_value(src, first[:, None] + j * stride, keep, DTYPE)
    low, scale, escaped = choose_qparams(x, keep, BITS)
    if tl.max(escaped.to(tl.int32), axis=0) > 0:
        scale = tl.where(escaped, escape_mean(src, first, stride, num, group < num_groups, DTYPE), scale)
    head = tl.where(group < num_groups, low | (scale << 16), 0)
    store_bytes(table, 0, head_offset + group * 4, head, group * 4 < (num_groups * 4 + 31) // 32 * 32, SHIFT, tl.int32)
    return x, low, scale


@triton.jit
def choose_kernel(src, table, numel, cols, num_groups, head_offset, BITS: tl.constexpr, DTYPE: tl.constexpr,
                  COLUMN: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    group = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    choose_groups(src, table, group, numel, cols, num_groups, head_offset, BITS, DTYPE, COLUMN, SHIFT)


@triton.jit
def encode_kernel(src, table, numel, cols, num_groups, head_offset, tag_offset, BITS: tl.constexpr,
                  DTYPE: tl.constexpr, COLUMN: tl.constexpr, STOCHASTIC: tl.constexpr,
                  SHIFT: tl.constexpr):  # fmt: skip
    """ROWS units of 256 elements in memory order: every plane's bits, and for run groups their headers."""
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    keep = index < numel
    if COLUMN:
        x = load_value(src, index, keep, DTYPE)
        group = group_of(index, cols, COLUMN)
        low = load_bytes(table, 0, head_offset + group * 4, keep, SHIFT, tl.uint16)
        scale = load_bytes(table, 0, head_offset + group * 4 + 2, keep, SHIFT, tl.uint16)
    else:
        x, low, scale = choose_groups(src, table, unit, numel, cols, num_groups, head_offset, BITS, DTYPE, False, SHIFT)
        low, scale, group = low[:, None], scale[:, None], unit[:, None]
    step = from_bf16(scale)
    inverse = tl.where(step > 0.0, tl.div_rn(65536.0, step), 0.0)
    escaped = low == BF16_NAN
    scaled = (x - from_bf16(low)) * inverse
    fixed = tl.where(keep & (escaped == 0), scaled, 0.0).to(tl.int32)
    fixed = tl.minimum(fixed, ((1 << BITS) - 1) << 16)
    if STOCHASTIC:
        half = random16(group_key(table, group), position_of(index, cols, COLUMN).to(tl.int32))
    else:
        half = 0x8000
    code = (fixed + half) >> 16
    for s in tl.static_range(1, BITS + 1):
        bit = tl.where(escaped, escape_bit(x, s), (code >> (BITS - s)) & 1)
        store_plane(table, s, unit, tl.where(keep, bit, 0), unit * GROUP < numel, ROWS, SHIFT)
    if tl.program_id(0) == 0:
        store_tag(table, tag_offset, SHIFT)


@triton.jit
def decode_kernel(dst, table, numel, cols, head_offset, BITS: tl.constexpr, LIVE: tl.constexpr, DTYPE: tl.constexpr,
                  COLUMN: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    keep = index < numel
    group = group_of(index, cols, COLUMN)
    low = load_bytes(table, 0, head_offset + group * 4, keep, SHIFT, tl.uint16)
    scale = load_bytes(table, 0, head_offset + group * 4 + 2, keep, SHIFT, tl.uint16)
    code = tl.zeros((ROWS, GROUP), dtype=tl.int32)
    for s in tl.static_range(1, LIVE + 1):
        code = 2 * code + load_bit(table, s, index, keep, SHIFT)
    width = 1 << (BITS - LIVE)
    step = from_bf16(scale)
    value = from_bf16(low) + step * ((width - 1) * 0.5) + (step * (width * 1.0)) * code.to(tl.float32)
    value = tl.where((low & 0x7FFF) > 0x7F80, escape_value(code, scale, LIVE), value)
    store_value(dst, index, value, keep, DTYPE)
