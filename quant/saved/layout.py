"""How a saved tensor lies in memory, worked out once per (shape, strides)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from daf.quant.torch_internals import has_storage

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What the engine must know to encode a tensor in memory order and to give back its strides.

    shape, strides   of the tensor as autograd saved it
    core_shape       shape with expanded (stride 0) axes cut to 1
    core_strides     strides of the tensor that decoding makes: dense, in the same axis order
    numel            distinct elements: the product of core_shape
    cols             extent of the innermost axis in memory: the width of a row for column groups
    is_dense         the distinct elements fill one stretch of memory without gaps
    is_expanded      some axis is repeated by a stride of 0
    """

    shape: Sizes
    strides: Sizes
    core_shape: Sizes
    core_strides: Sizes
    numel: int
    cols: int
    is_dense: bool
    is_expanded: bool


def is_in_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements are there to be read.

    Sparse tensors and what torch.func wraps have none of their own, nested tensors no one shape. A tensor that is known
    to be zero was never written, one that is negated lazily holds the others, and of a sharded weight the memory is
    taken away between its uses.
    """
    if not has_storage(tensor) or tensor.is_nested:
        return False
    if tensor._is_zerotensor() or tensor.is_neg():
        return False
    return tensor.numel() == 0 or tensor.untyped_storage().nbytes() > 0


@lru_cache(maxsize=4096)
def layout_of(shape: Sizes, strides: Sizes) -> Layout:
    is_expanded = any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True))
    core_shape = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    # Innermost first; an axis of extent 1 has no say in the order.
    order = sorted((axis for axis in range(len(shape)) if core_shape[axis] > 1), key=lambda axis: strides[axis])
    core_strides = [1] * len(shape)
    numel = 1
    is_dense = True
    for axis in order:
        is_dense = is_dense and strides[axis] == numel
        core_strides[axis] = numel
        numel *= core_shape[axis]
    if is_dense and not is_expanded:
        core_strides = list(strides)
    cols = core_shape[order[0]] if order else 1
    if 0 in shape:
        numel = 0
    return Layout(shape, strides, core_shape, tuple(core_strides), numel, cols, is_dense, is_expanded)


def is_same_memory(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether `view` is all of `base`, in another shape perhaps."""
    return view.data_ptr() == base.data_ptr() and view.numel() == base.numel() and view.dtype is base.dtype
