"""Convolutions and the backward of batch norms in slices, where memory is short.

oneDNN copies what a convolution reads and writes into a layout of its own. For a whole batch these copies take as much
again as two activations, at the very peak of a step; in slices of the batch they take next to nothing. Only the sum
over the slices, the weight's gradient, is rounded in another order than torch's. A batch norm's backward takes an
activation for itself too. Channels know nothing of each other there, so slices of channels give what the whole gives.
While there is room, torch's own ops run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from daf.quant.torch_internals import call_composite, can_call_kernels, cpu_kernel, destroy

_DIMS = {torch.channels_last: 4, torch.channels_last_3d: 5}

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
_NORM_BACKWARD = "native_batch_norm_backward"


def _forward(*arguments: Any) -> Tensor:
    return call_composite(torch.ops.aten.convolution.default, *arguments)  # type: ignore[no-any-return]


def _backward(*arguments: Any) -> Gradients:
    return call_composite(torch.ops.aten.convolution_backward.default, *arguments)  # type: ignore[no-any-return]


class Slices:
    """Stands before torch's ops on the CPU while `max_bytes`, the most input that a slice takes, is not 0."""

    def __init__(self) -> None:
        self.max_bytes = 0
        self._library: torch.library.Library | None = None
        self._norm: Any = None  # torch's own kernel of a batch norm's backward

    def resize(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        if max_bytes and self._library is None and can_call_kernels():
            self._norm = cpu_kernel(_NORM_BACKWARD)
            ours = {"convolution": self.forward, "convolution_backward": self.backward}
            if self._norm is not None:
                ours[_NORM_BACKWARD] = self.norm_backward
            self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch tells of kernels that are overridden
                for name, function in ours.items():
                    self._library.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
        elif not max_bytes and self._library is not None and destroy(self._library):
            self._library = None

    def forward(self, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        num_slices = self._num_slices(x)
        if num_slices == 1:
            return _forward(x, weight, *rest)
        parts = x.chunk(num_slices)
        first = _forward(parts[0], weight, *rest)
        out = torch.empty((len(x), *first.shape[1:]), dtype=first.dtype, device=x.device, memory_format=_format(x))
        for part, place in zip(parts, out.chunk(num_slices), strict=True):
            place.copy_(first if part is parts[0] else _forward(part, weight, *rest))
        return out

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Gradients:
        num_slices = self._num_slices(x)
        if num_slices == 1:
            return _backward(grad, x, weight, *rest)
        is_wanted = rest[-1]
        grad_x = torch.empty_like(x) if is_wanted[0] else None
        places = x.chunk(num_slices) if grad_x is None else grad_x.chunk(num_slices)
        grad_weight: Tensor | None = None
        grad_bias: Tensor | None = None
        for part, piece, place in zip(grad.chunk(num_slices), x.chunk(num_slices), places, strict=True):
            to_x, to_weight, to_bias = _backward(part, piece, weight, *rest)
            if to_x is not None and grad_x is not None:
                place.copy_(to_x)
            grad_weight, grad_bias = _sum(grad_weight, to_weight), _sum(grad_bias, to_bias)
        return grad_x, grad_weight, grad_bias

    def norm_backward(self, grad: Tensor, x: Tensor, *rest: Any) -> Gradients:
        """`rest` is the weight and four statistics, of the channels, and three settings, the last says what is wanted.

        Slices are gathered, so that torch takes the same way as over the whole.
        """
        num_slices = self._num_slices(x, 1)
        if num_slices == 1:
            return self._norm(grad, x, *rest)  # type: ignore[no-any-return]
        grad_x = torch.empty_like(x) if rest[-1][0] else None
        columns = ((x if grad_x is None else grad_x).chunk(num_slices, 1), grad.chunk(num_slices, 1))
        numbers = (_split(tensor, num_slices) for tensor in rest[:5])
        sums: list[tuple[Tensor | None, Tensor | None]] = []
        for place, part, piece, *some in zip(*columns, x.chunk(num_slices, 1), *numbers, strict=True):
            dense = (tensor.contiguous(memory_format=_format(x)) for tensor in (part, piece))
            to_x, to_weight, to_bias = self._norm(*dense, *some, *rest[5:])
            if grad_x is not None:
                place.copy_(to_x)
            sums.append((to_weight, to_bias))
        to_weights, to_biases = zip(*sums, strict=True)
        return grad_x, _join(to_weights), _join(to_biases)

    def _num_slices(self, x: Tensor, dim: int = 0) -> int:
        if x.nbytes <= self.max_bytes or not self.max_bytes:
            return 1
        return len(x.chunk(min(x.shape[dim], -(-x.nbytes // self.max_bytes)), dim))


def _format(tensor: Tensor) -> torch.memory_format:
    for memory_format in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        if tensor.dim() == _DIMS.get(memory_format, tensor.dim()) and tensor.is_contiguous(memory_format=memory_format):
            return memory_format
    return torch.contiguous_format


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total.add_(part)


def _split(numbers: Tensor | None, num_slices: int) -> Sequence[Tensor | None]:
    """Those of each slice of the channels; nothing, or an empty tensor, goes to every slice."""
    return numbers.chunk(num_slices) if numbers is not None and len(numbers) else [numbers] * num_slices


def _join(parts: Sequence[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
