"""What is recomputed from a decoded tensor in one pass of C: see pointwise.h. Pointers are ints, of float32 memory."""

from __future__ import annotations

from typing import Any

from daf.kernels._native import ffi, lib


def _floats(pointer: int | None) -> Any:
    return ffi.cast("float *", pointer or 0)


def walk_back(
    y: int, shortcut: int | None, x: int, *, numel: int, channels: tuple[int, int, int], num: int, inner: int
) -> None:
    """x = (y - shortcut) * scale + offset where y > 0, else low; `channels` are scale, offset and low, `num` each."""
    numbers = ffi.new("daf_channels_t *", [*map(_floats, channels), num, inner])
    lib.daf_walk_back(_floats(y), _floats(shortcut), _floats(x), numel, numbers)


def normalize(
    x: int, y: int, *, mean: int, rstd: int, weight: int | None, bias: int | None, rows: int, cols: int
) -> None:
    """y = (x - mean) * rstd * weight + bias, as layer norm: mean and rstd by row, weight and bias by column."""
    lib.daf_normalize(*map(_floats, (x, mean, rstd, weight, bias, y)), rows, cols)


def bound_rows(x: int, *, mean: int, rstd: int, rows: int, cols: int) -> None:
    """Draw rows of x whose mean square of (x - mean) * rstd is above 1 towards their mean until it is 1, in place."""
    lib.daf_bound_rows(*map(_floats, (x, mean, rstd)), rows, cols)
