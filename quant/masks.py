"""Saved tensors that may be masks, and values that no lossy codec may touch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def is_constant(tensor: Tensor) -> bool:
    """Nothing that autograd follows: noise, a mask, a batch of data."""
    return tensor.grad_fn is None and not tensor.requires_grad


def is_finite(tensor: Tensor) -> bool:
    """One pass: a sum is finite only if all of its terms are (finite sums that overflow count as not)."""
    return math.isfinite(float(tensor.detach().sum(dtype=torch.float32)))


def has_infinity(tensor: Tensor) -> Tensor:
    """The opposite as int32 [1], where the tensor is: to know it later, without waiting for a device."""
    return tensor.detach().sum(dtype=torch.float32).isfinite().logical_not().to(torch.int32).view(1)
