"""Convolutions in slices of the batch, where memory is short.

oneDNN copies what a convolution reads and writes into a layout of its own. For a whole batch these copies take as much
again as two activations, at the very peak of a step; slice by slice they take next to nothing. Only the sum over the
slices, the weight's gradient, is rounded in another order than torch's. While there is room, torch's own op runs.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

_DIMS = {torch.channels_last: 4, torch.channels_last_3d: 5}

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
_KEY = torch._C.DispatchKey.CompositeExplicitAutograd  # where torch's own kernels are registered


def _forward(*arguments: Any) -> Tensor:
    return torch.ops.aten.convolution.default._op_dk(_KEY, *arguments)  # type: ignore[no-any-return]


def _backward(*arguments: Any) -> Gradients:
    return torch.ops.aten.convolution_backward.default._op_dk(_KEY, *arguments)  # type: ignore[no-any-return]


class Slices:
    """Stands before torch's convolutions on the CPU while `max_bytes`, the most input that a slice takes, is not 0."""

    def __init__(self) -> None:
        self.max_bytes = 0
        self._library: torch.library.Library | None = None

    def resize(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        if max_bytes and self._library is None:
            self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch tells of kernels that are overridden
                self._library.impl("convolution", self.forward, "CPU")  # type: ignore[no-untyped-call]
                self._library.impl("convolution_backward", self.backward, "CPU")  # type: ignore[no-untyped-call]
        elif not max_bytes and self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
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

    def _num_slices(self, x: Tensor) -> int:
        if x.nbytes <= self.max_bytes or not self.max_bytes:
            return 1
        return len(x.chunk(min(len(x), -(-x.nbytes // self.max_bytes))))


def _format(tensor: Tensor) -> torch.memory_format:
    for memory_format in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        if tensor.dim() == _DIMS.get(memory_format, tensor.dim()) and tensor.is_contiguous(memory_format=memory_format):
            return memory_format
    return torch.contiguous_format


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total.add_(part)
