"""Memory by kind: which of the arena's tensors are parameters, gradients and optimizer state.

The optimizer knows all three when it steps: its hooks are asked then, at most once in many steps. Parameters that no
optimizer has (frozen ones) are found in the modules that the engine saw called. Activations are counted by the ledger,
and what is left of the tensors is temporaries: the reader of the stats page works that out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

LOOK_EVERY = 64  # steps; at first more often, since an optimizer's state comes with its first step


class Kinds:
    """Counts what the arena holds of each kind, and tells it to the arena.

    modules   returns the modules that were seen so far
    """

    def __init__(self, arena: Any, modules: Callable[[], Iterable[torch.nn.Module]]) -> None:
        self._arena = arena
        self._modules = modules
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._num_steps = 0
        self._handles: list[Any] = []

    def install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_step(self, optimizer: torch.optim.Optimizer, *_args: Any) -> None:
        """Gradients are all there now, and perhaps at no other time."""
        self._optimizers.add(optimizer)
        self._num_steps += 1
        if self._is_due():
            parameters = list(self._parameters())
            self._tell("parameter_bytes", parameters)
            self._tell("gradient_bytes", [p.grad for p in parameters if p.grad is not None])

    def _after_step(self, *_args: Any) -> None:
        if self._is_due():
            self._tell("optimizer_bytes", [tensor for one in self._optimizers for tensor in _state_of(one)])

    def _is_due(self) -> bool:
        number = self._num_steps
        return number & (number - 1) == 0 or number % LOOK_EVERY == 0

    def _parameters(self) -> Iterable[Tensor]:
        seen: set[int] = set()
        groups = (group["params"] for one in self._optimizers for group in one.param_groups)
        for source in (*groups, *(module.parameters(recurse=False) for module in self._modules())):
            for parameter in source:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def _tell(self, name: str, tensors: Iterable[Tensor]) -> None:
        try:
            self._arena.tell(**{name: self._num_bytes(tensors)})
        except Exception:  # a closed arena, or a tensor of a strange make: training goes on uncounted
            self.remove()

    def _num_bytes(self, tensors: Iterable[Tensor]) -> int:
        """The bytes that the arena holds for them, each storage once."""
        storages = {s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors)}
        return sum(num_bytes for pointer, num_bytes in storages.items() if pointer and self._arena.owns(pointer))


def _state_of(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    for state in optimizer.state.values():
        if isinstance(state, dict):
            yield from (value for value in state.values() if isinstance(value, Tensor))
