# mypy: ignore-errors
"""Triton twin of meansplit.c: the mean-split tree, and the same over the non-zero elements with a support plane.

Nodes are numbered as in a heap: the root is 1, the parts of node h are 2h (lower) and 2h + 1 (upper); 0 is the place of
elements that the support plane holds to be zero. What belongs to the nodes of a group is a row of 16 numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from daf.kernels.triton.escape import escape_bit, escape_mean, escape_value, is_regular
from daf.kernels.triton.numbers import (
    BF16_NAN,
    FLAG,
    FLOAT16,
    GROUP,
    ROWS,
    bits_of,
    float_of,
    from_bf16,
    from_ratio,
    group_of,
    load_bit,
    load_bytes,
    load_value,
    place_of,
    store_bytes,
    store_plane,
    store_tag,
    store_value,
    to_bf16,
    to_ratio,
)

COLS = tl.constexpr(64)  # column groups of one program, side by side
NODES = tl.constexpr(16)


@triton.jit
def store_head(table, s, HEAD: tl.constexpr, at, group, value, num_groups, head_offset, kind: tl.constexpr,
               SHIFT: tl.constexpr):  # fmt: skip
    """Write header byte(s) `at` of stream s; headers past the last group, to the end of their unit, are zero."""
    value = tl.where(group < num_groups, value, 0)
    inside = group * HEAD < (num_groups * HEAD + 31) // 32 * 32
    store_bytes(table, s, head_offset + group * HEAD + at, value, inside, SHIFT, kind)


@triton.jit
def get(row, node):
    """Column `node` [ROWS] of numbers [ROWS, 16]; exact, all others being zero."""
    return tl.sum(tl.where(tl.arange(0, NODES)[None, :] == node, row, 0), axis=1)


@triton.jit
def put(row, node, value):
    return tl.where(tl.arange(0, NODES)[None, :] == node, value[:, None], row)


@triton.jit
def ordered_sum(x, keep):
    """Sum [ROWS] of the kept of x [ROWS, 256]: 64 partial sums by position, then halves onto halves."""
    parts = tl.reshape(tl.where(keep, x, 0.0), (ROWS, 4, 64))
    quarter = tl.arange(0, 4)[None, :, None]
    total = tl.sum(tl.where(quarter == 0, parts, 0.0), axis=1)
    for q in tl.static_range(1, 4):
        total += tl.sum(tl.where(quarter == q, parts, 0.0), axis=1)
    total = tl.sum(tl.reshape(total, (ROWS, 2, 32)), axis=1)
    total = tl.sum(tl.reshape(total, (ROWS, 2, 16)), axis=1)
    total = tl.sum(tl.reshape(total, (ROWS, 2, 8)), axis=1)
    total = tl.sum(tl.reshape(total, (ROWS, 2, 4)), axis=1)
    total = tl.sum(tl.reshape(total, (ROWS, 2, 2)), axis=1)
    return tl.sum(total, axis=1)


@triton.jit
def mean_of(total, count):
    return tl.div_rn(total, tl.maximum(count, 1).to(tl.float32))


@triton.jit
def distance_of(lower, num_lower, upper, num_upper):
    """Distance of the means of a split's two parts; 0 where one is empty."""
    distance = mean_of(upper, num_upper) - mean_of(lower, num_lower)
    return tl.where((num_lower > 0) & (num_upper > 0) & (distance > 0.0), distance, 0.0)


@triton.jit
def ratio_of(distance, root):
    """A distance as it is stored below the root: relative to the root's."""
    return tl.where(root > 0.0, to_ratio(tl.div_rn(distance, tl.where(root > 0.0, root, 1.0))), 0)


@triton.jit
def lower_of(mean, distance, upper, count):
    """The lower part's mean, as a decoder has it."""
    return mean - distance * tl.div_rn(upper.to(tl.float32), tl.maximum(count, 1).to(tl.float32))


@triton.jit
def flat_value(low, high, count, has_zero, mean):
    """What a group decodes to that has nothing above its mean, or nothing below."""
    value = tl.where(low == high, low + 0.0, tl.where(has_zero, 0.0, mean))
    return tl.where(count > 0, value, 0.0)


@triton.jit
def flat_bits(x, node, count, has_zero, mean):
    """The bits of flat_value [ROWS] of run groups [ROWS, 256]; node: 1 where an element counts."""
    low = tl.min(tl.where(node == 1, x, float("inf")), axis=1)
    high = tl.max(tl.where(node == 1, x, float("-inf")), axis=1)
    return bits_of(flat_value(low, high, count, has_zero, mean))


@triton.jit
def root_head(distance, value, flat, has_zero, escaped, escape):
    """Header 1: the root's distance, the lower half of a flat group's value, or an escaped group's mean."""
    stored = to_bf16(distance)
    stored = tl.where(flat, value & 0xFFFF, tl.where(has_zero, stored | FLAG, stored))
    return tl.where(escaped, escape, stored)


@triton.jit
def part_means(has_zero, parent, distance, parts, counts):
    """Where to cut a split's two parts: at their means, of groups with zeros as a decoder has them."""
    lower, upper = parts
    num_lower, num_upper = counts
    decoded = lower_of(parent, distance, num_upper, num_lower + num_upper)
    lower_mean = tl.where(has_zero, decoded, mean_of(lower, num_lower))
    return lower_mean, tl.where(has_zero, decoded + distance, mean_of(upper, num_upper))


@triton.jit
def run_escape(src, group, numel, escaped, real, DTYPE: tl.constexpr):
    """The means [ROWS] that escaped run groups keep; found only where there are such."""
    escape = escaped.to(tl.int32) * 0
    if tl.max(escaped.to(tl.int32), axis=0) > 0:
        num = tl.minimum(numel - group * GROUP, GROUP)
        escape = escape_mean(src, group * GROUP, 1, num, real, DTYPE)
    return escape


@triton.jit
def encode_run_kernel(src, table, numel, num_groups, head_offset, support_bytes, tag_offset, BITS: tl.constexpr,
                      DTYPE: tl.constexpr, SUPPORT: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """ROWS run groups, choosing and packing in one pass: the groups stay in registers."""
    group = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    keep = index < numel
    real = group < num_groups
    x = load_value(src, index, keep, DTYPE)
    node = keep.to(tl.int32)
    if SUPPORT:
        node = (keep & (x != 0.0)).to(tl.int32)
        store_plane(table, 0, group, node, real, ROWS, SHIFT)
    escaped = tl.max((keep & ~is_regular(x)).to(tl.int32), axis=1) > 0
    escape = run_escape(src, group, numel, escaped, real, DTYPE)
    sums = put(tl.zeros((ROWS, NODES), dtype=tl.float32), 1, ordered_sum(x, node == 1))
    counts = put(tl.zeros((ROWS, NODES), dtype=tl.int32), 1, tl.sum(node, axis=1))
    has_zero, mean = tl.max((node * (x == 0.0).to(tl.int32)), axis=1) > 0, mean_of(get(sums, 1), get(counts, 1))
    value, head = flat_bits(x, node, get(counts, 1), has_zero, mean), to_bf16(mean)
    means = put(tl.zeros((ROWS, NODES), dtype=tl.float32), 1, tl.where(has_zero, from_bf16(head), mean))
    flat = has_zero & (has_zero == 0)
    root = escape.to(tl.float32) * 0.0
    for s in tl.static_range(1, BITS + 1):
        for k in tl.static_range(0, 1 << (s - 1)):
            parent = (1 << (s - 1)) + k
            total, count = get(sums, parent), get(counts, parent)
            inside = node == parent
            above = inside & (x > get(means, parent)[:, None])
            num_upper = tl.sum(above.to(tl.int32), axis=1)
            if s == 1:
                flat = (num_upper == 0) | (num_upper == count)
            above = above & (flat[:, None] == 0)
            node = tl.where(inside, 2 * parent + above.to(tl.int32), node)
            upper, num_upper = ordered_sum(x, above), tl.sum(above.to(tl.int32), axis=1)
            distance = distance_of(total - upper, count - num_upper, upper, num_upper)
            if s == 1:
                stored = root_head(distance, value, flat, has_zero, escaped, escape)
                distance = from_bf16(to_bf16(distance))
                root = distance
                store_head(table, s, 2, 0, group, stored, num_groups, head_offset, tl.int16, SHIFT)
            else:
                stored = tl.where(escaped, 0, ratio_of(distance, root))
                distance = from_ratio(stored) * root
                store_head(table, s, 1 << (s - 1), k, group, stored, num_groups, head_offset, tl.uint8, SHIFT)
            if s < BITS:
                sums = put(put(sums, 2 * parent, total - upper), 2 * parent + 1, upper)
                counts = put(put(counts, 2 * parent, count - num_upper), 2 * parent + 1, num_upper)
                lower, higher = part_means(
                    has_zero, get(means, parent), distance, (total - upper, upper), (count - num_upper, num_upper)
                )
                means = put(put(means, 2 * parent, lower), 2 * parent + 1, higher)
        bit = tl.where(escaped[:, None] & keep, escape_bit(x, s), (node > 0).to(tl.int32) & node & 1)
        store_plane(table, s, group, bit, real, ROWS, SHIFT)
    head = tl.where(escaped, BF16_NAN, tl.where(flat, (value >> 16) & 0xFFFF, head))
    store_head(table, 0, 2, 0, group, head, num_groups, support_bytes, tl.int16, SHIFT)
    if tl.program_id(0) == 0:
        store_tag(table, tag_offset, SHIFT)


@triton.jit
def load_row(src, first, stride, num, j, real, DTYPE: tl.constexpr, SUPPORT: tl.constexpr):
    """Element j of groups [COLS], whether there is one, and its node: the root, or 0 where the support says zero."""
    keep = real & (j < num)
    x = load_value(src, first + j * stride, keep, DTYPE)
    if SUPPORT:
        node = (keep & (x != 0.0)).to(tl.int32)
    else:
        node = keep.to(tl.int32)
    return x, keep, node


@triton.jit
def choose_root_kernel(src, table, sums, counts, means, numel, cols, num_groups, support_bytes, DTYPE: tl.constexpr,
                       SUPPORT: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """The root of COLS column groups: header 0, and its row in sums, counts and means [num_groups, 16].

    Sums run down the rows in order. Entry 0 of a group's row keeps, in sums, the mean of an escaped group; in counts,
    whether it holds zeros; in means, what it decodes to if it is flat.
    """
    group = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    real = group < num_groups
    first, stride, num = place_of(group, numel, cols, True)
    total = tl.zeros((COLS,), dtype=tl.float32)
    count = tl.zeros((COLS,), dtype=tl.int32)
    irregular = tl.zeros((COLS,), dtype=tl.int32)
    has_zero = tl.zeros((COLS,), dtype=tl.int32)
    low, high = total + float("inf"), total + float("-inf")
    for j in range(tl.max(tl.where(real, num, 0), axis=0)):
        x, keep, node = load_row(src, first, stride, num, j, real, DTYPE, SUPPORT)
        total += tl.where(node > 0, x, 0.0)
        count += node
        irregular |= (keep & ~is_regular(x)).to(tl.int32)
        has_zero |= node * (x == 0.0).to(tl.int32)
        low, high = tl.minimum(low, tl.where(node > 0, x, low)), tl.maximum(high, tl.where(node > 0, x, high))
    escape = irregular * 0
    if tl.max(irregular, axis=0) > 0:
        escape = escape_mean(src, first, stride, num, real, DTYPE)
    mean = mean_of(total, count)
    head = tl.where(irregular > 0, BF16_NAN, to_bf16(mean))
    store_head(table, 0, 2, 0, group, head, num_groups, support_bytes, tl.int16, SHIFT)
    tl.store(sums + group * NODES, escape.to(tl.float32), mask=real)
    tl.store(sums + group * NODES + 1, total, mask=real)
    tl.store(counts + group * NODES, has_zero, mask=real)
    tl.store(counts + group * NODES + 1, count, mask=real)
    tl.store(means + group * NODES, flat_value(low, high, count, has_zero > 0, mean), mask=real)
    tl.store(means + group * NODES + 1, tl.where(has_zero > 0, from_bf16(to_bf16(mean)), mean), mask=real)


@triton.jit
def choose_level_kernel(src, table, sums, counts, means, numel, cols, num_groups, head_offset, support_bytes,
                        LEVEL: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr, SUPPORT: tl.constexpr,
                        SHIFT: tl.constexpr):  # fmt: skip
    """Split the nodes of level LEVEL - 1 of COLS column groups: header LEVEL, and the parts' sums, counts, means."""
    PARENTS: tl.constexpr = 1 << (LEVEL - 1)
    group = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    real = group < num_groups
    first, stride, num = place_of(group, numel, cols, True)
    parents = PARENTS + tl.arange(0, PARENTS)[None, :]
    upper = tl.zeros((COLS, PARENTS), dtype=tl.float32)
    num_upper = tl.zeros((COLS, PARENTS), dtype=tl.int32)
    for j in range(tl.max(tl.where(real, num, 0), axis=0)):
        x, keep, node = load_row(src, first, stride, num, j, real, DTYPE, SUPPORT)
        for _ in tl.static_range(0, LEVEL):
            mean = tl.load(means + group * NODES + node, mask=keep & (node > 0), other=0.0)
            node = tl.where(node > 0, 2 * node + (x > mean).to(tl.int32), 0)
        here = node[:, None] == 2 * parents + 1
        upper += tl.where(here, x[:, None], 0.0)
        num_upper += here.to(tl.int32)
    place = group[:, None] * NODES + parents
    inside = real[:, None] & (parents > 0)
    lower = tl.load(sums + place, mask=inside, other=0.0) - upper
    num_lower = tl.load(counts + place, mask=inside, other=0) - num_upper
    threshold = tl.load(means + place, mask=inside, other=0.0)
    has_zero = (tl.load(counts + group * NODES, mask=real, other=0) > 0)[:, None]
    distance = distance_of(lower, num_lower, upper, num_upper)
    escaped = (load_bytes(table, 0, support_bytes + group * 2, real, SHIFT, tl.uint16) == BF16_NAN)[:, None]
    if LEVEL == 1:
        flat = ((num_lower == 0) | (num_upper == 0)) & (escaped == 0)
        value = bits_of(tl.load(means + group * NODES, mask=real, other=0.0))[:, None]
        escape = tl.load(sums + group * NODES, mask=real, other=0.0).to(tl.int32)[:, None]
        stored = root_head(distance, value, flat, has_zero, escaped, escape)
        distance = from_bf16(to_bf16(distance))
        store_head(table, 1, 2, 0, group[:, None], stored, num_groups, head_offset, tl.int16, SHIFT)
        store_bytes(table, 0, support_bytes + group[:, None] * 2, value >> 16, real[:, None] & flat, SHIFT, tl.int16)
        tl.store(means + place, float("inf"), mask=inside & flat)  # so nothing is above it
    else:
        flat = threshold == float("inf")
        stored = load_bytes(table, 1, head_offset + group * 2, real, SHIFT, tl.uint16)[:, None]
        root = tl.where(flat, 0.0, from_bf16(stored & (FLAG - 1)))
        stored = tl.where(escaped, 0, ratio_of(distance, root))
        distance = from_ratio(stored) * root
        store_head(table, LEVEL, PARENTS, parents - PARENTS, group[:, None], stored, num_groups, head_offset, tl.uint8,
                   SHIFT)  # fmt: skip
    if LEVEL < BITS:
        place += parents  # node 2h of the same row
        tl.store(sums + place, lower, mask=inside)
        tl.store(sums + place + 1, upper, mask=inside)
        tl.store(counts + place, num_lower, mask=inside)
        tl.store(counts + place + 1, num_upper, mask=inside)
        lower_mean, upper_mean = part_means(has_zero, threshold, distance, (lower, upper), (num_lower, num_upper))
        tl.store(means + place, tl.where(flat, float("inf"), lower_mean), mask=inside)
        tl.store(means + place + 1, tl.where(flat, float("inf"), upper_mean), mask=inside)


@triton.jit
def encode_column_kernel(src, table, means, numel, cols, support_bytes, tag_offset, BITS: tl.constexpr,
                         DTYPE: tl.constexpr, SUPPORT: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """ROWS units in memory order, once the column groups are chosen."""
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    keep = index < numel
    real = unit * GROUP < numel
    x = load_value(src, index, keep, DTYPE)
    group = group_of(index, cols, True)
    node = keep.to(tl.int32)
    if SUPPORT:
        node = (keep & (x != 0.0)).to(tl.int32)
        store_plane(table, 0, unit, node, real, ROWS, SHIFT)
    escaped = load_bytes(table, 0, support_bytes + group * 2, keep, SHIFT, tl.uint16) == BF16_NAN
    for s in tl.static_range(1, BITS + 1):
        mean = tl.load(means + group * NODES + node, mask=keep, other=0.0)
        node = tl.where(node > 0, 2 * node + (x > mean).to(tl.int32), 0)
        bit = tl.where(escaped & keep, escape_bit(x, s), (node > 0).to(tl.int32) & node & 1)
        store_plane(table, s, unit, bit, real, ROWS, SHIFT)
    if tl.program_id(0) == 0:
        store_tag(table, tag_offset, SHIFT)


@triton.jit
def not_zero(value, DTYPE: tl.constexpr):
    """What was not zero does not become zero, in any element type."""
    least = 2.0**-24 if DTYPE == FLOAT16 else 2.0**-126
    return tl.where(tl.abs(value) < least, least, value)


@triton.jit
def leaves_kernel(table, leaves, numel, cols, num_groups, head_offset, support_bytes, LIVE: tl.constexpr,
                  COLUMN: tl.constexpr, SUPPORT: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """The leaves' means [num_groups, 16] of ROWS groups: a split's distance and bit counts give its means."""
    group = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = group < num_groups
    first, stride, num = place_of(group, numel, cols, COLUMN)
    j = tl.arange(0, GROUP)[None, :]
    index = first[:, None] + j * stride
    keep = real[:, None] & (j < num[:, None])
    node = keep.to(tl.int32)
    if SUPPORT:
        node = load_bit(table, 0, index, keep, SHIFT)
    mean = from_bf16(load_bytes(table, 0, support_bytes + group * 2, real, SHIFT, tl.uint16))
    means = put(tl.zeros((ROWS, NODES), dtype=tl.float32), 0, mean)  # of one level, the lowest first
    counts = put(tl.zeros((ROWS, NODES), dtype=tl.int32), 0, tl.sum(node, axis=1))
    root = mean
    has_zero = group < 0
    zero = group.to(tl.int32) * 0  # the node that zero is in
    for s in tl.static_range(1, LIVE + 1):
        bit = load_bit(table, s, index, keep, SHIFT)
        if s == 1:
            stored = load_bytes(table, s, head_offset + group * 2, real, SHIFT, tl.uint16)
            flat = tl.max(((node == 1) & (bit != 0)).to(tl.int32), axis=1) == 0
            means = put(means, 0, tl.where(flat, float_of(bits_of(mean) | stored), mean))
            root = tl.where(flat, 0.0, from_bf16(stored & (FLAG - 1)))
            has_zero = (flat == 0) & ((stored & FLAG) != 0)
        zero = 2 * zero + (get(means, zero[:, None]) < 0.0).to(tl.int32)
        next_means, next_counts = means, counts
        for k in tl.static_range(0, 1 << (s - 1)):
            if s == 1:
                distance = root
            else:
                ratio = load_bytes(table, s, head_offset + group * (1 << (s - 1)) + k, real, SHIFT, tl.uint8)
                distance = from_ratio(ratio) * root
            upper = tl.sum(((node == (1 << (s - 1)) + k) & (bit != 0)).to(tl.int32), axis=1)
            count = get(counts, k)
            lower = lower_of(get(means, k), distance, upper, count)
            next_means = put(put(next_means, 2 * k, lower), 2 * k + 1, lower + distance)
            next_counts = put(put(next_counts, 2 * k, count - upper), 2 * k + 1, upper)
        means, counts = next_means, next_counts
        node = tl.where(node > 0, 2 * node + bit, 0)
    nodes = tl.arange(0, NODES)[None, :]
    if not SUPPORT:
        means = tl.where(has_zero[:, None] & (nodes == zero[:, None]), 0.0, means)
    tl.store(leaves + group[:, None] * NODES + nodes, means, mask=real[:, None] & (nodes >= 0))


@triton.jit
def decode_kernel(dst, table, leaves, numel, cols, head_offset, support_bytes, LIVE: tl.constexpr, DTYPE: tl.constexpr,
                  COLUMN: tl.constexpr, SUPPORT: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """ROWS units in memory order: each element becomes its leaf's mean."""
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    keep = index < numel
    group = group_of(index, cols, COLUMN)
    code = tl.zeros((ROWS, GROUP), dtype=tl.int32)
    for s in tl.static_range(1, LIVE + 1):
        code = 2 * code + load_bit(table, s, index, keep, SHIFT)
    value = tl.load(leaves + group * NODES + code, mask=keep, other=0.0)
    escaped = (load_bytes(table, 0, support_bytes + group * 2, keep, SHIFT, tl.uint16) & 0x7FFF) > 0x7F80
    escape = code * 0
    if LIVE > 0:
        escape = load_bytes(table, 1, head_offset + group * 2, keep, SHIFT, tl.uint16)
    value = tl.where(escaped, escape_value(code, escape, LIVE), value)
    if SUPPORT:
        value = tl.where(load_bit(table, 0, index, keep, SHIFT) != 0, not_zero(value, DTYPE), 0.0)
    store_value(dst, index, value, keep, DTYPE)
