# mypy: ignore-errors
"""Triton twin of escape.c: groups with NaN, infinities or values beyond HUGE keep which of their elements are these."""

from __future__ import annotations

import triton
import triton.language as tl

from daf.kernels.triton.numbers import HUGE, float_of, from_bf16, load_value, to_bf16


@triton.jit
def is_regular(x):
    return tl.abs(x) < HUGE


@triton.jit
def escape_bit(x, s: tl.constexpr):
    """Bit of plane s of an escaped group: not finite; infinite; negative."""
    if s == 1:
        bit = ~is_regular(x)
    elif s == 2:
        bit = ~is_regular(x) & (x == x)
    elif s == 3:
        bit = ~is_regular(x) & (x < 0.0)
    else:
        bit = x != x
        bit = bit & ~bit
    return bit.to(tl.int32)


@triton.jit
def escape_mean(src, first, stride, num, mask, DTYPE: tl.constexpr):
    """Mean [ROWS] of the groups' regular elements, zero if one is, as bf16 bits, added up in order. Rare, so plain."""
    total = first.to(tl.float32) * 0.0
    count = first.to(tl.int32) * 0
    zeros = first.to(tl.int32) * 0
    for j in range(tl.max(tl.where(mask, num, 0), axis=0)):
        keep = mask & (j < num)
        x = load_value(src, first + j * stride, keep, DTYPE)
        regular = keep & is_regular(x)
        total += tl.where(regular, x, 0.0)
        count += regular.to(tl.int32)
        zeros += (keep & (x == 0.0)).to(tl.int32)
    return to_bf16(tl.where((count > 0) & (zeros == 0), tl.div_rn(total, tl.maximum(count, 1).to(tl.float32)), 0.0))


@triton.jit
def escape_value(code, mean, LIVE: tl.constexpr):
    """What an element of an escaped group decodes to; code: its LIVE plane bits, the first one highest."""
    nan = float_of(code * 0 + 0x7FC00000)
    if LIVE == 0:
        value = nan
    elif LIVE < 3:
        value = tl.where((code >> (LIVE - 1)) != 0, nan, from_bf16(mean))
    else:
        infinity = float_of(tl.where(((code >> (LIVE - 3)) & 1) != 0, 0xFF800000 - (1 << 32), 0x7F800000))
        special = tl.where(((code >> (LIVE - 2)) & 1) != 0, infinity, nan)
        value = tl.where((code >> (LIVE - 1)) != 0, special, from_bf16(mean))
    return value
