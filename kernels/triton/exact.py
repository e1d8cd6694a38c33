# mypy: ignore-errors
"""Triton twins of the exact codecs (exact_bits.c): raw bytes, booleans, masks, integers above their block's least."""

from __future__ import annotations

import triton
import triton.language as tl

from daf.kernels.triton.numbers import GROUP, ROWS, address, load_bit, load_bytes, store_bytes, store_plane, store_tag

BLOCK = tl.constexpr(4096)  # elements of an integer block, and bytes a program copies


@triton.jit
def raw_encode_kernel(src, table, num_bytes, tag_offset, SHIFT: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(src + offset, mask=offset < num_bytes, other=0)
    store_bytes(table, 0, offset, value, offset < tag_offset, SHIFT, tl.uint8)
    if tl.program_id(0) == 0:
        store_tag(table, tag_offset, SHIFT)


@triton.jit
def raw_decode_kernel(dst, table, num_bytes, SHIFT: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = load_bytes(table, 0, offset, offset < num_bytes, SHIFT, tl.uint8)
    tl.store(dst + offset, value.to(tl.uint8), mask=offset < num_bytes)


@triton.jit
def bool_encode_kernel(src, table, numel, tag_offset, SHIFT: tl.constexpr):
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(src + index, mask=index < numel, other=0)
    store_plane(table, 0, unit, (value != 0).to(tl.int32), unit * GROUP < numel, ROWS, SHIFT)
    if tl.program_id(0) == 0:
        store_tag(table, tag_offset, SHIFT)


@triton.jit
def bool_decode_kernel(dst, table, numel, SHIFT: tl.constexpr):
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    tl.store(dst + index, load_bit(table, 0, index, index < numel, SHIFT).to(tl.uint8), mask=index < numel)


@triton.jit
def mask_encode_kernel(src, table, value, doubt, numel, head_offset, SHIFT: tl.constexpr):
    """A plane of what is not zero, and a unit that begins with the other value. src, value: the floats' bits.

    doubt is set where an element is neither zero nor that value.
    """
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    bits = tl.load(src + index, mask=index < numel, other=0)
    other = tl.load(value)
    tl.atomic_max(doubt, tl.max(tl.max(((bits != 0) & (bits != other)).to(tl.int32), axis=1), axis=0))
    store_plane(table, 0, unit, (bits != 0).to(tl.int32), unit * GROUP < numel, ROWS, SHIFT)
    if tl.program_id(0) == 0:
        word = tl.arange(0, 8)
        # As bits without a sign: a half float's sign must not run on into the upper half of the word.
        head = other.to(tl.int32) & (0xFFFF if src.dtype.element_ty == tl.int16 else -1)
        store_bytes(table, 0, head_offset + 4 * word, tl.where(word == 0, head, 0), word >= 0, SHIFT, tl.uint32)


@triton.jit
def mask_decode_kernel(dst, table, numel, head_offset, SHIFT: tl.constexpr):
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = unit[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(address(table, 0, head_offset, True, SHIFT).to(tl.pointer_type(tl.int32)))
    bit = load_bit(table, 0, index, index < numel, SHIFT)
    tl.store(dst + index, tl.where(bit != 0, value, 0).to(dst.dtype.element_ty), mask=index < numel)


@triton.jit
def int_encode_kernel(src, table, doubt, numel, num_blocks, head_offset, BITS: tl.constexpr, SHIFT: tl.constexpr):
    """One block of integers; doubt is set where a block's elements need more than BITS planes."""
    block = tl.program_id(0).to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    keep = index < numel
    value = tl.load(src + index, mask=keep, other=0).to(tl.int64)
    base = tl.min(tl.where(keep, value, 0x7FFFFFFFFFFFFFFF), axis=0)
    code = tl.where(keep, value - base, 0).to(tl.uint64)
    if BITS < 64:
        tl.atomic_max(doubt, tl.max(((code >> BITS) != 0).to(tl.int32), axis=0))
    word = tl.arange(0, BLOCK // 32)
    lane = tl.arange(0, 32)[None, :].to(tl.uint32)
    for p in range(BITS):
        bit = ((code >> (BITS - 1 - p)) & 1).to(tl.uint32)
        words = tl.sum(tl.reshape(bit, (BLOCK // 32, 32)) << lane, axis=1)
        store_bytes(table, 0, (p * num_blocks + block) * (BLOCK // 8) + word * 4, words, word >= 0, SHIFT, tl.uint32)
    entry = block + tl.arange(0, 4)  # the last block's program also clears its unit's rest
    end = tl.where(block == num_blocks - 1, (num_blocks + 3) // 4 * 4, block + 1)
    store_bytes(table, 0, head_offset + entry * 8, tl.where(entry == block, base, 0), entry < end, SHIFT, tl.int64)


@triton.jit
def tag_kernel(table, tag_offset, SHIFT: tl.constexpr):
    """What makes a stash of integers or of a mask valid, once its planes are known to hold them."""
    store_tag(table, tag_offset, SHIFT)


@triton.jit
def tag_read_kernel(out, table, tag_offset, SHIFT: tl.constexpr):
    byte = tl.arange(0, 32)
    tl.store(out + byte, load_bytes(table, 0, tag_offset + byte, byte >= 0, SHIFT, tl.uint8).to(tl.uint8))


@triton.jit
def int_decode_kernel(dst, table, numel, num_blocks, head_offset, BITS: tl.constexpr, SHIFT: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    keep = index < numel
    code = tl.zeros((BLOCK,), dtype=tl.uint64)
    for p in range(BITS):
        bit = load_bit(table, 0, (p * num_blocks + block) * BLOCK + tl.arange(0, BLOCK), keep, SHIFT)
        code = 2 * code + bit.to(tl.uint64)
    base = tl.load(address(table, 0, head_offset + block * 8, True, SHIFT).to(tl.pointer_type(tl.int64)))
    tl.store(dst + index, (base + code.to(tl.int64)).to(dst.dtype.element_ty), mask=keep)
