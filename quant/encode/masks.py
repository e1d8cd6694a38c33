"""Saved tensors that may be masks, and values that no lossy codec may touch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOOKED_AT = 4096  # elements
SOME = 64


def is_constant(tensor: Tensor) -> bool:
    """Nothing that autograd follows: noise, a mask, a batch of data."""
    return tensor.grad_fn is None and not tensor.requires_grad


def is_finite(tensor: Tensor) -> bool:
    """One pass: a sum is finite only if all of its terms are (finite sums that overflow count as not)."""
    return math.isfinite(float(tensor.detach().sum(dtype=torch.float32)))


def has_infinity(tensor: Tensor) -> Tensor:
    """The opposite as int32 [1], where the tensor is: to know it later, without waiting for a device."""
    return tensor.detach().sum(dtype=torch.float32).isfinite().logical_not().to(torch.int32).view(1)


def looks_like_mask(tensor: Tensor) -> bool:
    """Whether the first elements in memory hold one value besides zero; the codec looks at all of them."""
    some = tensor.detach().as_strided((min(tensor.numel(), LOOKED_AT),), (1,), tensor.storage_offset())
    values = some[some != 0]
    return values.numel() == 0 or bool(values.min() == values.max())


def fingerprint(tensor: Tensor) -> object:
    """Tells contents apart that came into one memory without autograd's knowledge (by `.data`, by numpy): a hash of
    all elements, which does not see their order, and some elements in order."""
    values = tensor.detach()
    hashed = torch.hash_tensor(values).view(torch.int64) if hasattr(torch, "hash_tensor") else values.double().sum()
    some = values.reshape(-1)[:: max(1, values.numel() // SOME)]
    return hashed.item(), tuple(some.tolist())
