"""Layer norm's input, kept within what its statistics say of it.

    backward of a row:   rstd * (h - mean(h) - x^ * mean(h x^)),   x^ = (x - mean) * rstd

mean and rstd are saved exact, x is not. A column group runs down 256 rows: where these differ in size, its noise is
small beside the loud rows and large beside the quiet ones, which rstd makes all the same size. A quiet row whose x^ has
a mean square of 14 instead of 1 gives back its gradient 13 times as large, the layer before does it again, and eight
layers on a gradient of 0.3 had become 37,000. So a decoded row is drawn towards its mean until the mean square of its
x^ is 1 at most: it never can be more. Rows that came out smaller stay: that is how trees decode, with the least error.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from daf.kernels.recompute.pointwise import bound_rows
from daf.quant.encode.choice import EXACT
from daf.quant.saved.handles import Handle, Kept, compressed_behind

if TYPE_CHECKING:
    from daf.quant.saved.layout import Layout


def bound_input(x: Handle | None, mean: Handle | None, rstd: Handle | None) -> None:
    """From now on what a layer norm's input `x` decodes to is bound by its statistics. What is exact stays so."""
    stored = compressed_behind(x)
    if x is None or stored is None or stored.bound is not None or stored.plan.spec.codec in EXACT:
        return
    if isinstance(mean, Kept) and isinstance(rstd, Kept) and _is_by_rows(x.layout):
        stored.bound = functools.partial(draw_in, mean=mean.tensor, rstd=rstd.tensor)
        if stored.decoded is not None:
            stored.bound(stored.decoded)


def _is_by_rows(layout: Layout) -> bool:
    return layout.is_dense and not layout.is_expanded and list(layout.strides) == sorted(layout.strides, reverse=True)


def draw_in(x: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """Bound each row of `x`, in place. x: dense, rows one after the other in memory, whatever its shape and strides.

    mean, rstd: one number a row, [..., 1].
    """
    rows = mean.numel()
    if not rows or not x.numel():
        return
    cols = x.numel() // rows
    is_plain = x.is_cpu and all(tensor.dtype == torch.float32 for tensor in (x, mean, rstd))
    if is_plain and mean.is_contiguous() and rstd.is_contiguous():
        bound_rows(x.data_ptr(), mean=mean.data_ptr(), rstd=rstd.data_ptr(), rows=rows, cols=cols)
        return
    by_row = x.as_strided((rows, cols), (cols, 1))
    middle = mean.reshape(rows, 1).float()
    away = by_row.float() - middle
    square = (away * rstd.reshape(rows, 1)).square_().mean(1, keepdim=True)
    by_row.copy_(away.mul_(square.clamp_min_(1.0).rsqrt_()).add_(middle))
