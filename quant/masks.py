"""Saved tensors that are really masks, and values that no lossy codec may touch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SAMPLES = 64


def second_value(tensor: Tensor) -> float | None:
    """The one value besides zero that `tensor` holds, exactly; None if it holds more. Dense tensors only."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    sample = flat[:: max(1, flat.numel() // _SAMPLES)]
    value = float(sample[sample.abs().argmax()])
    if value == 0.0 or math.isnan(value) or bool(((sample != 0) & (sample != value)).any()):
        return None
    return value if bool(((flat == 0) | (flat == value)).all()) else None


def is_constant(tensor: Tensor) -> bool:
    """Nothing that autograd follows: noise, a mask, a batch of data."""
    return tensor.grad_fn is None and not tensor.requires_grad


def is_finite(tensor: Tensor) -> bool:
    """One pass: a sum is finite only if all of its terms are (finite sums that overflow count as not)."""
    return math.isfinite(float(tensor.detach().sum(dtype=torch.float32)))
