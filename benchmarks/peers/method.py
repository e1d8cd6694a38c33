"""The interface of a way to train, and the two that need no codec: plain and checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from benchmarks.workloads.workload import Batch, Workload


class StorageMeter:
    """Adds up the storages of the tensors it is shown, each once, but not those of parameters and buffers."""

    def __init__(self, model: nn.Module) -> None:
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self.total_bytes = 0

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total_bytes += storage.nbytes()
        return tensor


class Method:
    """Plain training, and what the other methods change of it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss, with whatever the method does to what autograd saves."""
        return self.workload.loss(self.workload.model, batch)

    def exact(self) -> AbstractContextManager[Any]:
        """Return a context in which `forward` is plain training's."""
        return nullcontext()

    def saved_bytes(self, batch: Batch) -> int:
        """Return what autograd holds between forward and backward: unique storages."""
        meter = StorageMeter(self.workload.model)
        with saved_tensors_hooks(meter.add, _same):
            loss = self.forward(batch)
        del loss
        return meter.total_bytes

    def step_ended(self) -> None:
        """Be told that an optimizer step is over."""

    def stats(self) -> dict[str, Any]:
        """Return numbers of the method's own."""
        return {}


class Checkpoint(Method):
    """Recompute every block in the backward pass; only the blocks' inputs are kept."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._meter: StorageMeter | None = None
        for block in workload.blocks:
            block.forward = self._recomputed(block.forward)

    def _recomputed(self, forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._meter is not None:
                self._count((*args, *kwargs.values()))
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)

        return run

    def _count(self, values: Iterable[Any]) -> None:
        assert self._meter is not None
        for value in values:
            if isinstance(value, Tensor):
                self._meter.add(value)

    def saved_bytes(self, batch: Batch) -> int:
        # Checkpoint's own hooks are innermost inside a block, so the meter's see the rest, and the wrapper the inputs.
        self._meter = StorageMeter(self.workload.model)
        try:
            with saved_tensors_hooks(self._meter.add, _same):
                loss = self.forward(batch)
            del loss
            return self._meter.total_bytes
        finally:
            self._meter = None


def _same(tensor: Tensor) -> Tensor:
    return tensor


def gradient(method: Method, batch: Batch, seed: int) -> Tensor:
    """Return the gradient of all trained parameters as one vector; dropout draws from `seed`."""
    for parameter in method.workload.model.parameters():
        parameter.grad = None
    torch.manual_seed(seed)
    method.forward(batch).backward()
    found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in method.workload.trainable()]
    return torch.cat([grad.flatten() for grad in found])
