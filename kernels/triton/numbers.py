# mypy: ignore-errors
"""Number formats, random numbers and paged addresses for the Triton twins: what numbers.h and codec.h are to C.

Launch with `enable_fp_fusion=False` and divide with `div_rn`: a fused multiply-add or an approximate quotient would
round differently from the C reference, and one bit of difference is a different stash.
"""

from __future__ import annotations

import triton
import triton.language as tl

GROUP = tl.constexpr(256)
ROWS = tl.constexpr(4)  # groups, or units of 256 elements, of one program: 8 elements a thread
HUGE = tl.constexpr(2.0**118)  # elements at or beyond this count as infinite
BF16_NAN = tl.constexpr(0x7FC0)
LEAST_SCALE = tl.constexpr(2.0**-100)
RATIO_BIAS = tl.constexpr(107 << 3)
FLAG = tl.constexpr(0x8000)  # in a scale or a distance, which are not negative: see minmax.h and meansplit.h
FLOAT32 = tl.constexpr(0)
BFLOAT16 = tl.constexpr(1)
FLOAT16 = tl.constexpr(2)
# A table of 8-byte words stands for planes on the device (codec.py builds it):
#     | first page of each stream, 12 | tag, 4 | seed | addresses of the pages ... |
TABLE_TAG = tl.constexpr(12)
TABLE_SEED = tl.constexpr(16)
TABLE_PAGES = tl.constexpr(17)


@triton.jit
def bits_of(value):
    return value.to(tl.int32, bitcast=True)


@triton.jit
def float_of(bits):
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def from_bf16(half):
    return float_of(half.to(tl.int32) << 16)


@triton.jit
def to_bf16(value):
    """To the nearest, ties to even."""
    bits = bits_of(value)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, BF16_NAN, rounded)


@triton.jit
def to_bf16_down(value):
    """Towards minus infinity."""
    bits = bits_of(value)
    return ((bits + tl.where(bits < 0, 0xFFFF, 0)) >> 16) & 0xFFFF


@triton.jit
def to_bf16_up(value):
    """Away from zero; value is not negative."""
    return ((bits_of(value) + 0xFFFF) >> 16) & 0xFFFF


@triton.jit
def to_f16(value):
    """To the nearest, ties to even; a finite value stays finite."""
    bits = bits_of(value)
    sign = (bits >> 16) & 0x8000
    rest = bits & 0x7FFFFFFF
    magnitude = tl.minimum(float_of(rest), 65504.0)
    tiny = bits_of(magnitude + 0.5) - 0x3F000000
    normal = bits_of(magnitude)
    normal = (normal + 0xFFF + ((normal >> 13) & 1) - (112 << 23)) >> 13
    finite = tl.where(magnitude < 2.0**-14, tiny, normal)
    special = tl.where(rest > 0x7F800000, 0x7E00, 0x7C00)
    return sign | tl.where(rest >= 0x7F800000, special, finite)


@triton.jit
def to_ratio(ratio):
    """A ratio >= 0 in 8 bits: 5 of exponent, 3 of fraction."""
    code = ((bits_of(ratio) + (1 << 19)) >> 20) - RATIO_BIAS
    return tl.minimum(tl.maximum(code, 0), 255)


@triton.jit
def from_ratio(code):
    return float_of((code.to(tl.int32) + RATIO_BIAS) << 20)


@triton.jit
def group_key(table, group):
    """splitmix64 of seed and group: the upper half."""
    z = tl.load(table + TABLE_SEED).to(tl.uint64) + (group.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return ((z ^ (z >> 31)) >> 32).to(tl.uint32)


@triton.jit
def random16(key, position):
    counter = ((position // 32) * 16 + position % 16).to(tl.uint32)
    x = key ^ (counter * 0x9E3779B1)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return tl.where((position & 16) != 0, x >> 16, x & 0xFFFF).to(tl.int32)


@triton.jit
def load_value(src, index, mask, DTYPE: tl.constexpr):
    """Elements as float32; zero where masked."""
    if DTYPE == FLOAT32:
        value = tl.load(src + index, mask=mask, other=0.0)
    elif DTYPE == BFLOAT16:
        value = from_bf16(tl.load(src + index, mask=mask, other=0))
    else:
        value = tl.load(src + index, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def store_value(dst, index, value, mask, DTYPE: tl.constexpr):
    """dst: float32, or int16 for both 16-bit types, whose bits are made here."""
    if DTYPE == FLOAT32:
        tl.store(dst + index, value, mask=mask)
    elif DTYPE == BFLOAT16:
        tl.store(dst + index, to_bf16(value).to(tl.int16), mask=mask)
    else:
        tl.store(dst + index, to_f16(value).to(tl.int16), mask=mask)


@triton.jit
def address(table, stream, offset, mask, SHIFT: tl.constexpr):
    """Address of byte `offset` of a stream; `offset` must lie in it where `mask` holds."""
    first = tl.load(table + stream)
    page = tl.load(table + TABLE_PAGES + first + (offset >> SHIFT), mask=mask, other=0)
    return page + (offset & ((1 << SHIFT) - 1))


@triton.jit
def load_bytes(table, stream, offset, mask, SHIFT: tl.constexpr, kind: tl.constexpr):
    """Numbers of type `kind` at `offset`, as int32."""
    where = address(table, stream, offset, mask, SHIFT).to(tl.pointer_type(kind))
    return tl.load(where, mask=mask, other=0).to(tl.int32)


@triton.jit
def store_bytes(table, stream, offset, value, mask, SHIFT: tl.constexpr, kind: tl.constexpr):
    where = address(table, stream, offset, mask, SHIFT).to(tl.pointer_type(kind))
    tl.store(where, value.to(kind), mask=mask)


@triton.jit
def load_bit(table, stream, index, mask, SHIFT: tl.constexpr):
    """Bit of element `index` in a stream's plane."""
    return (load_bytes(table, stream, index // 8, mask, SHIFT, tl.uint8) >> (index % 8).to(tl.int32)) & 1


@triton.jit
def store_plane(table, stream, unit, bits, mask, ROWS: tl.constexpr, SHIFT: tl.constexpr):
    """Write bits [ROWS, 256] as the units `unit` [ROWS] of a stream's plane."""
    lane = tl.arange(0, 32)[None, None, :].to(tl.uint32)
    words = tl.sum(tl.reshape(bits.to(tl.uint32), (ROWS, 8, 32)) << lane, axis=2)
    offset = unit[:, None] * 32 + tl.arange(0, 8)[None, :] * 4
    whole = mask[:, None] & (tl.arange(0, 8)[None, :] >= 0)
    store_bytes(table, stream, offset, words, whole, SHIFT, tl.uint32)


@triton.jit
def store_tag(table, offset, SHIFT: tl.constexpr):
    """Write the tag, the last unit of stream 0."""
    word = tl.arange(0, 4)
    tag = tl.load(table + TABLE_TAG + word)
    store_bytes(table, 0, offset + word * 8, tag, word >= 0, SHIFT, tl.int64)


@triton.jit
def group_of(index, cols, COLUMN: tl.constexpr):
    """The group whose header element `index` uses."""
    if COLUMN:
        group = index // cols // GROUP * cols + index % cols
    else:
        group = index // GROUP
    return group


@triton.jit
def position_of(index, cols, COLUMN: tl.constexpr):
    """Where in its group element `index` stands."""
    if COLUMN:
        position = index // cols % GROUP
    else:
        position = index % GROUP
    return position


@triton.jit
def place_of(group, numel, cols, COLUMN: tl.constexpr):
    """First element, distance of neighbours and number of elements of a group."""
    if COLUMN:
        row = group // cols * GROUP
        place = (row * cols + group % cols, cols, tl.minimum(numel // cols - row, GROUP))
    else:
        place = (group * GROUP, 1, tl.minimum(numel - group * GROUP, GROUP))
    return place
