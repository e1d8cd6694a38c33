"""Hooks for saved tensors to compare with, each as a context: none, hooks that do nothing, and ways to offload."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

MIN_OFFLOAD_BYTES = 1024


class Offloading:
    """As trainers offload: tensors from 1 KiB on, but for parameters, are copied to a buffer and known by a number."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, bool]] = {}
        self._next = 0

    def pack(self, tensor: Tensor) -> int:
        number = self._next
        self._next += 1
        is_copied = tensor.nbytes >= MIN_OFFLOAD_BYTES and not isinstance(tensor, torch.nn.Parameter)
        if is_copied:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            buffer.copy_(tensor.detach(), non_blocking=True)
            tensor = buffer
        self._held[number] = (tensor, is_copied)
        return number

    def unpack(self, number: int) -> Tensor:
        tensor, is_copied = self._held.pop(number)
        return tensor.to("cpu", non_blocking=True) if is_copied else tensor


def offloading() -> AbstractContextManager[None]:
    hooks = Offloading()
    return saved_tensors_hooks(hooks.pack, hooks.unpack)


def no_op() -> AbstractContextManager[None]:
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


PEERS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "plain": contextlib.nullcontext,
    "no_op": no_op,
    "save_on_cpu": save_on_cpu,
    "offload": offloading,
}
