"""Batch norm before ReLU: its input need not be stored, because it can be recomputed from the output.

    x -> batch norm -> (+ shortcut) -> ReLU -> y          the shortcut: another ReLU's output, or another batch norm's

Where y > 0 the chain can be inverted: x = ((y - shortcut) - bias) / (weight * invstd) + mean. Where y = 0 the
gradient is zero too, so x is needed there only for the small term x^ * mean(g x^), and the mean of a normal variable
below the threshold serves. y is stored anyway, with an exact support plane, for the next convolution.

When y is saved, x has just been: its handle is made to follow y. At the next step the slot of x waits for y, uncoded,
so that x is not encoded in vain. What is lost is about half of what one bit for x would lose (RECOMPUTE_ERROR), so this
is for narrow widths; `auto` weighs it against the other options.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from daf.kernels.recompute.pointwise import walk_back
from daf.quant.encode.unconfirmed import Answer
from daf.quant.observers import Observer
from daf.quant.ops import ADD, BATCH_NORMS, RELU
from daf.quant.recompute.rules import handle_of, recipe_of, source
from daf.quant.saved.handles import Handle, Recipe, Recomputed, View, slot_of
from daf.quant.saved.slots import Slot
from daf.quant.torch_internals import setting

RECOMPUTE_ERROR = 0.18  # relative energy: nothing where y > 0, the variance of half a normal where y = 0
PART_BYTES = 64 << 20
_SMALLEST_SCALE = 1e-4  # a channel whose weight is nearly zero cannot be inverted


class NormInputs(Observer):
    """Has the inputs of batch norms recomputed from the ReLU outputs that are stored behind them."""

    def __init__(self, may_recompute_at: Callable[[Slot], bool], *, is_on: bool) -> None:
        self.is_on = is_on
        self._may_recompute_at = may_recompute_at

    def see_stored(self, view: View, tensor: Tensor) -> None:
        node = tensor.grad_fn
        if node is not None and node.name() == RELU:
            link(view, node, self._may_recompute_at)


def link(output: View, node: Any, may_recompute_at: Callable[[Slot], bool]) -> None:
    """`output` is the ReLU output that `node` made: the inputs of the norms before it are recomputed from it."""
    before = node.next_functions[0][0]
    if before is None:
        return
    if before.name() in BATCH_NORMS:
        _link_norm(output, before, None, may_recompute_at)
    elif before.name() == ADD and setting(before, "alpha", 1) == 1:
        (left, _), (right, _) = before.next_functions
        for norm, other in ((left, right), (right, left)):
            if norm is not None and other is not None and norm.name() in BATCH_NORMS:
                shortcut = _shortcut(other)
                if shortcut is not None:
                    _link_norm(output, norm, shortcut, may_recompute_at)
                    return


def _shortcut(node: Any) -> Recipe | None:
    """What was added to the norm's output: a ReLU's, or another norm's, which stores its own input then."""
    if node.name() == RELU:
        return source(node, "result")
    return recipe_of(node) if node.name() in BATCH_NORMS else None


def _link_norm(output: View, norm: Any, shortcut: Recipe | None, may_recompute_at: Callable[[Slot], bool]) -> None:
    x = handle_of(norm, "input")
    slot = slot_of(x) if x is not None and setting(norm, "training") else None
    if slot is not None and slot.facts.can_recompute and not may_recompute_at(slot):
        return  # known already
    channels = _Channels.of(norm, slot) if slot is not None else None
    if x is None or slot is None or channels is None or x.layout.shape != output.layout.shape:
        return
    slot.facts.can_recompute = True
    slot.facts.ops.add(norm.name())
    slot.plan.is_recomputed = may_recompute_at(slot)
    if not slot.plan.is_recomputed:
        return
    output.stored.num_uses += 1
    sources: tuple[Handle, ...] = (output,) if shortcut is None else (output, *shortcut.sources)
    for handle in sources:
        if (origin := slot_of(handle)) is not None:
            origin.facts.followers.add(slot.id)
    recipe = Recipe(lambda: channels.walk_back(output.restore(), None if shortcut is None else shortcut()), sources)
    x.supersede(Recomputed(recipe, x.layout, output.stored.dtype, x.layout.numel * output.stored.dtype.itemsize))


class _Channels:
    """What a norm did to each channel, as tensors [1, C, 1, ...]: x = y * scale + offset, or `low` below zero."""

    def __init__(self, scale: Tensor, offset: Tensor, low: Tensor) -> None:
        self.scale, self.offset, self.low = scale, offset, low

    @classmethod
    @torch.no_grad()
    def of(cls, norm: Any, slot: Slot) -> _Channels | None:
        weight, mean, invstd = (_value(norm, name) for name in ("weight", "result1", "result2"))
        bias = getattr(norm.next_functions[2][0], "variable", None)
        if weight is None or mean is None or invstd is None or bias is None:
            return None
        if _is_too_flat(weight, slot):
            return None
        scale = 1.0 / (weight * invstd)
        offset = mean - bias * scale
        # The mean of a standard normal below t is -pdf(t) / cdf(t); above, for a negative weight, +pdf / (1 - cdf).
        threshold = -bias / weight
        side = torch.sign(weight)
        density = torch.exp(-0.5 * threshold.square()) / math.sqrt(2.0 * math.pi)
        share = torch.special.ndtr(side * threshold).clamp_min(1e-3)
        low = mean - side * density / share / invstd
        return cls(scale.detach(), offset.detach(), low.detach())

    def walk_back(self, output: Tensor, shortcut: Tensor | None) -> Tensor:
        """x = low where output = 0, else (output - shortcut) * scale + offset.

        Where C cannot, torch does; large batches part by part, so that what is in between takes no memory to speak of.
        """
        x = torch.empty_like(output)
        if self._walk_back_at_once(output, shortcut, x):
            return x
        num = max(1, PART_BYTES * len(x) // max(x.nbytes, 1))
        shape = (1, -1) + (1,) * (output.dim() - 2)
        channels = _Channels(*(tensor.view(shape) for tensor in (self.scale, self.offset - self.low, self.low)))
        for first in range(0, len(x), num):
            part = slice(first, first + num)
            _walk_back(output[part], None if shortcut is None else shortcut[part], x[part], channels)
        return x

    def _walk_back_at_once(self, y: Tensor, shortcut: Tensor | None, x: Tensor) -> bool:
        tensors = [y, self.scale, self.offset, self.low] + ([] if shortcut is None else [shortcut])
        is_alike = x.stride() == y.stride() and (shortcut is None or shortcut.stride() == y.stride())
        inner = _inner(y)
        if inner == 0 or not y.is_cpu or not is_alike or any(tensor.dtype != torch.float32 for tensor in tensors):
            return False
        numbers = (self.scale.data_ptr(), self.offset.data_ptr(), self.low.data_ptr())
        other = None if shortcut is None else shortcut.data_ptr()
        size = {"numel": y.numel(), "num": y.shape[1], "inner": inner}
        walk_back(y.data_ptr(), other, x.data_ptr(), channels=numbers, **size)
        return True


def _is_too_flat(weight: Tensor, slot: Slot) -> bool:
    """Whether some channel cannot be inverted. A device answers by the next step, for which it is as good:
    a step moves weights by little. Only the first time is it waited for."""
    answer = Answer((weight.abs().min() < _SMALLEST_SCALE).view(1))
    last, slot.facts.is_flat = slot.facts.is_flat, answer
    return (answer if weight.is_cpu or last is None else last).wait()


def _inner(tensor: Tensor) -> int:
    """How many neighbours in memory are of one channel; 0 where the tensor is dense in neither order."""
    if tensor.is_contiguous():
        return math.prod(tensor.shape[2:])
    return int(tensor.movedim(1, -1).is_contiguous())


def _walk_back(y: Tensor, shortcut: Tensor | None, x: Tensor, channels: _Channels) -> None:
    """With sign() and in place: torch.where takes three times as long as the whole of it. `offset` is from `low`."""
    scale, height, low = channels.scale, channels.offset, channels.low
    if shortcut is None:
        torch.sign(y, out=x)
        torch.addcmul(low, x, height, out=x).addcmul_(y, scale)
    else:
        torch.sub(y, shortcut, out=x)
        torch.addcmul(height, x, scale, out=x).mul_(torch.sign(y)).add_(low)


def _value(norm: Any, name: str) -> Tensor | None:
    handle = handle_of(norm, name)
    return None if handle is None else handle.restore()
