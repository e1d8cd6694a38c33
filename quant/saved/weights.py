"""Which saved tensors are really weights, or statistics. Coding those would spoil each gradient through them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from daf.quant.ops import ACCUMULATE, GROUP_NORM, OF_PARAMETERS

_MAX_CHAIN = 6


def is_from_parameters(tensor: Tensor) -> bool:
    """A parameter's view, a copy of one in another dtype (what autocast makes), or a weight that weight norm makes."""
    base = tensor._base
    if base is not None and isinstance(base, Parameter):
        return True
    node: Any = tensor.grad_fn
    for _ in range(_MAX_CHAIN):
        if node is None:
            return False
        if node.name() == ACCUMULATE:
            return isinstance(node.variable, Parameter)
        if node.name() not in OF_PARAMETERS:
            return False
        node = node.next_functions[0][0]
    return False


def is_weight_copy(tensor: Tensor, module: torch.nn.Module | None) -> bool:
    """A frozen weight cast by autocast has no history left to follow; its shape in its own module gives it away."""
    if module is None or tensor.requires_grad:
        return False
    shape = tensor.shape
    return any(
        weight is not None and weight.dtype != tensor.dtype and weight.shape in (shape, shape[::-1])
        for weight in module._parameters.values()
    )


def is_of_users_leaf(tensor: Tensor) -> bool:
    """A tensor, or a view of one, whose gradient the user asked for: it lives on anyway, and may change unseen."""
    base = tensor._base
    owner = tensor if base is None else base
    return owner.is_leaf and owner.requires_grad


def is_statistic(tensor: Tensor) -> bool:
    """One number a row or group, such as a norm's mean and rstd. They scale the whole gradient and are next to nothing:
    a hundredth of the row's bytes, so every bit of them is worth keeping."""
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return False
    if tensor.shape[-1] == 1:
        return True
    return tensor.dim() == 2 and tensor.grad_fn is not None and tensor.grad_fn.name() == GROUP_NORM
