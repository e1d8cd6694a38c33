"""Attention's forward in C: see attention.h. Pointers are ints, of float32 memory; strides count elements."""

from __future__ import annotations

from dataclasses import dataclass

from daf.kernels._native import ffi, lib

MAX_HEAD_WIDTH: int = lib.DAF_MAX_HEAD_WIDTH


@dataclass(frozen=True, slots=True)
class Heads:
    """A tensor of samples, heads and rows, whose last dimension lies densely."""

    pointer: int
    strides: tuple[int, int, int]


def attend(
    q: Heads,
    k: Heads,
    v: Heads,
    mask: Heads | None,
    *,
    sizes: tuple[int, int, int, int, int],
    scale: float,
    is_causal: bool,
    out: Heads,
    lse: int,
) -> None:
    """Write softmax(q k^T * scale + mask) v to `out`, and the logarithm of its denominator to `lse`.

    Shapes, of `sizes` B, H, L, S, E: q and out [B, H, L, E], k and v [B, H, S, E], mask [B, H, L, S], lse [B, L, H].
    """
    heads = [_native(one) for one in (q, k, v, mask)]
    given = ffi.new("daf_attention_t *", [*heads, *sizes, scale, is_causal])
    strides = ffi.new("int64_t[3]", out.strides)
    lib.daf_attend(given, ffi.cast("float *", out.pointer), strides, ffi.cast("float *", lse))


def _native(heads: Heads | None) -> tuple[object, tuple[int, int, int]]:
    return (ffi.cast("float *", heads.pointer), heads.strides) if heads else (ffi.NULL, (0, 0, 0))
