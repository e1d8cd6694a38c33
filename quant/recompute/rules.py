"""Content that need not be stored because it can be recomputed from what is stored already.

A linear layer saves its input y; the op that made y often has saved what y was made from. Then y is recomputed
in backward from the decoded source, by one pass that costs about what decoding does, and takes no bytes:

    GELU, SiLU, ELU, ... y = f(x)            x is saved by the op itself
    norms                y = (x - mean) * rstd * weight + bias
    products             y = a * b           both saved by the product (gates), or
    dropout over softmax y = p * noise       p saved by softmax, noise by the product, or a mask by a device's dropout
    cast (autocast)      y = x.to(dtype)     of any of these

Sources are kept as handles, not through the autograd node: a node lets go of its saved tensors when it has run, a
handle lives as long as whoever holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from daf.kernels.recompute.pointwise import normalize
from daf.quant.ops import rule_of
from daf.quant.recompute.layernorm_bound import bound_input
from daf.quant.saved.handles import HANDLES, Handle, Recipe, View
from daf.quant.torch_internals import saved_handle, setting

MAX_DEPTH = 3
Rule = Callable[[Any, int], Recipe | None]  # of a node, and how much further it may look


def handle_of(node: Any, name: str) -> Handle | None:
    """The handle behind a node's saved tensor; None where it has no such tensor, or DAF did not pack it."""
    handle: Handle | None = saved_handle(node, name, HANDLES)
    return handle


def source(node: Any, name: str) -> Recipe | None:
    """A saved tensor of `node`, to be restored later. Counts as one more use of what is stored."""
    handle = handle_of(node, name)
    if handle is None:
        return None
    if isinstance(handle, View):
        handle.stored.num_uses += 1
    return Recipe(handle.restore, (handle,))


def recipe_of(node: Any, depth: int = MAX_DEPTH) -> Recipe | None:
    """How to work out the output of `node`, if that needs nothing but what is stored."""
    rule = RULES.get(rule_of(node.name())) if node is not None and depth > 0 else None
    return rule(node, depth) if rule is not None else None


def _function(function: Callable[..., Tensor], *settings: str) -> Rule:
    """The rule of a function of the saved `self` and of the settings that its node holds, in the function's order."""

    def rule(node: Any, _depth: int) -> Recipe | None:
        x = source(node, "self")
        values = [setting(node, name) for name in settings]
        return x and Recipe(lambda: function(x(), *values), x.sources)

    return rule


def _gelu(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def _layer_norm(node: Any, _depth: int) -> Recipe | None:
    x, mean, rstd = (source(node, name) for name in ("input", "result1", "result2"))
    weight, bias = source(node, "weight"), source(node, "bias")
    if x is None or mean is None or rstd is None:
        return None
    bound_input(x.sources[0], mean.sources[0], rstd.sources[0])

    def compute() -> Tensor:
        return normalized(x(), mean(), rstd(), None if weight is None else weight(), None if bias is None else bias())

    return Recipe(compute, x.sources)


def normalized(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean) * rstd * weight + bias: in one pass of C where all are dense floats on the CPU, else by torch."""
    tensors = [tensor for tensor in (x, mean, rstd, weight, bias) if tensor is not None]
    if x.numel() and x.is_cpu and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors):
        out, rows = torch.empty_like(x), mean.numel()
        normalize(
            x.data_ptr(),
            out.data_ptr(),
            mean=mean.data_ptr(),
            rstd=rstd.data_ptr(),
            weight=None if weight is None else weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            rows=rows,
            cols=x.numel() // rows,
        )
        return out
    out = (x - mean).mul_(rstd)
    if weight is None:
        return out if bias is None else out.add_(bias)
    return out.mul_(weight) if bias is None else torch.addcmul(bias, out, weight, out=out)


def _batch_norm(node: Any, _depth: int) -> Recipe | None:
    """From its input by the statistics that it saved, or ran with."""
    affine = _affine(node)
    is_training = setting(node, "training")
    eps = setting(node, "eps", setting(node, "epsilon"))  # the latter is cuDNN's
    names = ("result1", "result2") if is_training else ("running_mean", "running_var")
    mean, spread = (source(node, f"{name}") for name in names)
    if affine is None or mean is None or spread is None or (x := source(node, "input")) is None:
        return None
    weight, bias = affine

    def compute() -> Tensor:
        variance = spread().pow(-2) - eps if is_training else spread()
        return F.batch_norm(x(), mean(), variance, None if weight is None else weight(), bias, eps=eps)

    return Recipe(compute, x.sources)


def _group_norm(node: Any, _depth: int) -> Recipe | None:
    """From its input [N, C, ...] by its statistics [N, groups]."""
    affine = _affine(node)
    mean, rstd = source(node, "result1"), source(node, "result2")
    if affine is None or mean is None or rstd is None or (x := source(node, "input")) is None:
        return None
    weight, bias = affine
    num, channels, groups = (setting(node, name) for name in ("N", "C", "group"))

    def compute() -> Tensor:
        value = x()
        shape = (num, channels) + (1,) * (value.dim() - 2)
        scale, offset = (
            statistic.view(num, groups).repeat_interleave(channels // groups, 1)
            for statistic in (rstd(), mean().view(num, groups).neg() * rstd().view(num, groups))
        )
        if weight is not None:
            scale, offset = scale * weight(), offset * weight()
        if bias is not None:
            offset = offset + bias
        return torch.addcmul(offset.view(shape).to(value.dtype), value, scale.view(shape).to(value.dtype))

    return Recipe(compute, x.sources)


def _affine(node: Any) -> tuple[Recipe | None, Tensor | None] | None:
    """Weight and bias of a norm's node. None where it has a weight and no bias to train: it may have a frozen one."""
    weight = source(node, "weight")
    bias = getattr(node.next_functions[2][0], "variable", None)
    return None if weight is not None and bias is None else (weight, None if bias is None else bias.detach())


def _saved_result(node: Any, _depth: int) -> Recipe | None:
    return source(node, "result")


def _product(node: Any, depth: int) -> Recipe | None:
    (left, _), (right, _) = node.next_functions
    if left is not None and right is not None:
        one, other = source(node, "self"), source(node, "other")
        return one and other and Recipe(lambda: one() * other(), one.sources + other.sources)
    x = recipe_of(left, depth - 1) if right is None else None
    factor = x and source(node, "other")
    return x and factor and Recipe(lambda: x() * factor(), x.sources)


def _dropout(node: Any, depth: int) -> Recipe | None:
    """What a device does at once: y = x * mask / (1 - p)."""
    x = recipe_of(node.next_functions[0][0], depth - 1)
    mask = x and source(node, "result1")
    share = setting(node, "p")
    scale = 0.0 if share == 1 else 1 / (1 - share)
    return x and mask and Recipe(lambda: x() * mask() * scale, x.sources)


def _cast(node: Any, depth: int) -> Recipe | None:
    return recipe_of(node.next_functions[0][0], depth - 1)  # whoever asked casts the result to its own dtype


# By the name that a row of the table of ops gives its rule.
RULES: dict[str, Rule] = {
    "gelu": _function(_gelu, "approximate"),
    "silu": _function(F.silu),
    "mish": _function(F.mish),
    "elu": _function(torch.ops.aten.elu, "alpha", "scale", "input_scale"),
    "leaky_relu": _function(F.leaky_relu, "negative_slope"),
    "hardswish": _function(F.hardswish),
    "hardtanh": _function(F.hardtanh, "min_val", "max_val"),
    "softplus": _function(F.softplus, "beta", "threshold"),
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "product": _product,
    "dropout": _dropout,
    "cast": _cast,
    "saved_result": _saved_result,
}
