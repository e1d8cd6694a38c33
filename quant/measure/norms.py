"""What noise in the input of a norm does, from the gradients at its node.

    dx = rstd (h - mean(h) - x^ mean(h x^)),  h = g weight,  over groups of M elements

Noise d in x^ makes noise rstd (d mean(h x^) + x^ mean(h d)) in dx, of energy rstd^2 d^2 (S^2 + |h|^2) / M a group; S is
the sum of h x^. It is not in proportion to dx: where h lies along x^ the exact gradient nearly cancels, and the noise
does not. S needs no x^, since |dx|^2 / rstd^2 = |h|^2 - M mean(h)^2 - S^2 / M. In the weight's gradient, the sum of
g x^, it makes noise of energy d^2 |g|^2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from daf.quant.ops import BATCH_NORMS, GROUP_NORM, LAYER_NORM, RMS_NORM
from daf.quant.saved.handles import HANDLES, Kept
from daf.quant.torch_internals import saved_handle

if TYPE_CHECKING:
    from collections.abc import Callable

NORMS = BATCH_NORMS | {LAYER_NORM, GROUP_NORM, RMS_NORM}
SAMPLED_ROWS = 256
USUAL_EPS = 1e-5
_SCALES = {LAYER_NORM: "result2", GROUP_NORM: "result2", RMS_NORM: "result1"}

Noise = tuple[float, float, float]


def noise_of(node: Any, *, are_rows_alike: bool = False) -> Callable[[Tensor, Tensor, float], Noise] | None:
    """A function of the gradients after and before the norm, and of the mean square of its input.

    It gives what noise as large as the input makes: its energy in the gradient that flows on, in that of the weight,
    and in a row of the norm's own output, over the row's. None: it cannot be told. Where rows are stored as of one size
    (`are_rows_alike`), noise is in proportion to each.
    """
    name = node.name()
    rstd = _small(node, _SCALES.get(name, "result2"))
    weight = _small(node, "weight")
    if rstd is None or rstd.numel() == 0:
        return None
    rows_of = _channels if name in BATCH_NORMS else _groups if name == GROUP_NORM else _rows

    def noise(grad: Tensor, made: Tensor, mean_square: float) -> Noise:
        scale, share = rstd.detach().flatten().float(), 1.0
        h, g, dx = rows_of(grad, made, weight, scale.numel())
        if len(h) > SAMPLED_ROWS:
            every = len(h) // SAMPLED_ROWS
            share = len(h) / len(h[::every])
            h, g, dx, scale = h[::every], g[::every], dx[::every], scale[::every]
        num = h.shape[1]
        energy = h.square().sum(1)
        along = (energy - num * h.mean(1).square() - dx.square().sum(1) / scale.square()).clamp_min(0.0)
        # Of an element of x^.
        deviation = torch.ones_like(scale) if are_rows_alike else scale.square() * mean_square
        flowing = (scale.square() * deviation * (along + energy / num)).sum()
        into_weight = (deviation * g.square().sum(1)).sum()
        rows = (scale.square().reciprocal() - USUAL_EPS).clamp_min(1e-12)  # their variances
        gain = 1.0 if are_rows_alike else float((mean_square / rows).mean())
        return share * float(flowing), share * float(into_weight), gain

    return noise


def _small(node: Any, name: str) -> Tensor | None:
    """A statistic or weight, which is kept exact."""
    handle = saved_handle(node, name, HANDLES)
    return handle.tensor if isinstance(handle, Kept) and handle.instead is None else None


Rows = tuple[Tensor, Tensor, Tensor]


def _channels(grad: Tensor, made: Tensor, weight: Tensor | None, num: int) -> Rows:
    g, dx = (one.detach().transpose(0, 1).reshape(num, -1).float() for one in (grad, made))
    return (g if weight is None else g * weight.detach().float()[:, None]), g, dx


def _rows(grad: Tensor, made: Tensor, weight: Tensor | None, num: int) -> Rows:
    g, dx = (one.detach().reshape(num, -1).float() for one in (grad, made))
    return (g if weight is None else g * weight.detach().float().flatten()), g, dx


def _groups(grad: Tensor, made: Tensor, weight: Tensor | None, num: int) -> Rows:
    shape = (1, -1, *[1] * (grad.dim() - 2))
    h = grad.detach() if weight is None else grad.detach() * weight.detach().reshape(shape)
    return tuple(one.detach().reshape(num, -1).float() for one in (h, grad, made))  # type: ignore[return-value]
