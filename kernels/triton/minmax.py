# mypy: ignore-errors
"""Triton twin of minmax.c: min/max affine, to the nearest or stochastic, run and column groups.

Run groups choose and pack in one pass. Column groups are chosen first: bits stand in memory order, so a unit of them
mixes columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from daf.kernels.triton.escape import escape_bit, escape_mean, escape_value, is_regular
from daf.kernels.triton.numbers import (
    BF16_NAN,
    FLAG,
    GROUP,
    LEAST_SCALE,
    ROWS,
    bits_of,
    float_of,
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
def inverse_of(step):
    """Codes per unit, times 2^16."""
    return tl.where(step > 0.0, tl.div_rn(65536.0, tl.where(step > 0.0, step, 1.0)), 0.0)


@triton.jit
def code_of(x, low, step, half, BITS: tl.constexpr):
    fixed = ((x - low) * inverse_of(step)).to(tl.int32)
    return (tl.maximum(tl.minimum(fixed, ((1 << BITS) - 1) << 16), 0) + half) >> 16


@triton.jit
def grid_of(first, scale):
    """The value of code 0 and the step, from a header's two numbers."""
    step = from_bf16(scale & (FLAG - 1))
    return tl.where((scale & FLAG) != 0, 0.0 - step * first.to(tl.float32), from_bf16(first)), step


@triton.jit
def is_constant(first, scale):
    return (first & scale & FLAG) != 0


@triton.jit
def choose_qparams(x, keep, BITS: tl.constexpr):
    """Both numbers of the headers [ROWS] of groups [ROWS, 256]; NaN for a group that must escape."""
    low = tl.min(tl.where(keep, x, float("inf")), axis=1) + 0.0
    high = tl.max(tl.where(keep, x, float("-inf")), axis=1)
    has_zero = tl.max((keep & (x == 0.0)).to(tl.int32), axis=1) > 0
    escaped = tl.max((keep & ~is_regular(x)).to(tl.int32), axis=1) > 0
    first = to_bf16_down(low)
    scale = tl.div_rn(high - tl.where(has_zero, low, from_bf16(first)), (1 << BITS) - 1.0)
    scale = tl.where(scale < LEAST_SCALE, 0, to_bf16_up(scale))
    zero = code_of(0.0, tl.where(has_zero & (escaped == 0), low, 0.0), from_bf16(scale), 0x8000, BITS)
    first, scale = tl.where(has_zero, zero, first), tl.where(has_zero, scale | FLAG, scale)
    value = bits_of(low)
    constant = (low == high) & ((value & 0xFFFF) != 0)
    first = tl.where(constant, FLAG | ((value >> 2) & 0x7FFF), first)
    scale = tl.where(constant, FLAG | ((value >> 17) & 0x7FFF), scale)
    return tl.where(escaped, BF16_NAN, first), scale, escaped


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
    escaped = low == BF16_NAN
    constant = is_constant(low, scale)
    plain = keep & (escaped == 0) & (constant == 0)
    begin, step = grid_of(low, scale)
    position = position_of(index, cols, COLUMN).to(tl.int32)
    half = position * 0 + 0x8000
    if STOCHASTIC:
        half = tl.where(x != 0.0, random16(group_key(table, group), position), half)
    code = code_of(tl.where(plain, x, 0.0), tl.where(plain, begin, 0.0), tl.where(plain, step, 0.0), half, BITS)
    two_bits = tl.where(position < 2, (bits_of(x) >> (1 - tl.minimum(position, 1))) & 1, 0)
    code = tl.where(constant, two_bits << (BITS - 1), code)
    for s in tl.static_range(1, BITS + 1):
        bit = tl.where(escaped, escape_bit(x, s), (code >> (BITS - s)) & 1)
        store_plane(table, s, unit, tl.where(keep, bit, 0), unit * GROUP < numel, ROWS, SHIFT)
    if tl.program_id(0) == 0:
        store_tag(table, tag_offset, SHIFT)


@triton.jit
def constant_value(table, first, scale, group, keep, numel, cols, LIVE: tl.constexpr, COLUMN: tl.constexpr,
                   SHIFT: tl.constexpr):  # fmt: skip
    """The one value of groups: all but two bits from their headers, these from plane 1 of elements 0 and 1."""
    bits = ((scale & 0x7FFF) << 17) | ((first & 0x7FFF) << 2)
    if LIVE > 0:
        index, stride, num = place_of(group, numel, cols, COLUMN)
        bits |= load_bit(table, 1, index, keep, SHIFT) << 1
        bits |= load_bit(table, 1, index + stride, keep & (num > 1), SHIFT)
    return float_of(bits)


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
    begin, step = grid_of(low, scale)
    value = begin + step * ((width - 1) * 0.5) + (step * (width * 1.0)) * code.to(tl.float32)
    if LIVE > 0:
        value = tl.where(((scale & FLAG) != 0) & (code == low >> (BITS - LIVE)), 0.0, value)
    escaped = low == BF16_NAN
    value = tl.where(escaped, escape_value(code, scale, LIVE), value)
    constant = (escaped == 0) & is_constant(low, scale)
    if tl.max(tl.max(constant.to(tl.int32), axis=1), axis=0) > 0:
        value = tl.where(constant, constant_value(table, low, scale, group, constant & keep, numel, cols, LIVE, COLUMN,
                                                  SHIFT), value)  # fmt: skip
    store_value(dst, index, value, keep, DTYPE)
