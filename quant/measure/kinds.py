"""Memory by kind: which of the arena's tensors are parameters, gradients and optimizer state.

The optimizer knows all three when it steps: its hooks are asked then, at most once in many steps. Parameters that no
optimizer has (frozen ones) are found in the modules that the engine saw called. Activations are counted by the ledger,
and what is left of the tensors is temporaries: the reader of the stats page works that out.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from daf.quant.measure.notes import Notes

LOOK_EVERY = 64  # steps; at first more often, since an optimizer's state comes with its first step


class Kinds:
    """Counts what the arena holds of each kind, and tells it to the arena.

    modules   returns the modules that were seen so far, with their paths
    path      where bytes by module are written; None: nowhere
    """

    def __init__(
        self,
        arena: Any,
        modules: Callable[[], Iterable[tuple[str, torch.nn.Module]]],
        path: pathlib.Path | None = None,
    ) -> None:
        self._arena = arena
        self._modules = modules
        self._path = path
        self._by_module: dict[str, dict[str, int]] = {}
        self._notes = Notes(arena, path and path.with_suffix(".notes"))
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._num_steps = 0
        self.counts_steps = False  # where nothing is hooked that would
        self.on_step: Callable[[], None] = lambda: None
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
        if next(iter(self._optimizers), None) is optimizer:
            seconds = self._notes.time()
            if self.counts_steps:
                self._arena.step(seconds)
        self.on_step()
        if self._is_due():
            parameters = list(self._parameters())
            self._tell("parameter_bytes", parameters)
            self._tell("gradient_bytes", [p.grad for p in parameters if p.grad is not None])
            self._count_modules()
            self._notice()

    def _after_step(self, *_args: Any) -> None:
        if self._is_due():
            self._tell("optimizer_bytes", [tensor for one in self._optimizers for tensor in _state_of(one)])
            self._write_modules()

    def _is_due(self) -> bool:
        number = self._num_steps
        return number & (number - 1) == 0 or number % LOOK_EVERY == 0

    def _parameters(self) -> Iterable[Tensor]:
        seen: set[int] = set()
        groups = (group["params"] for one in self._optimizers for group in one.param_groups)
        for source in (*groups, *(module.parameters(recurse=False) for _, module in self._modules())):
            for parameter in source:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def _notice(self) -> None:
        try:
            self._notes.look(self._num_steps)
        except Exception:  # whatever stands in a script's variables: it is only looked at
            self._notes = Notes(self._arena, None)

    def _count_modules(self) -> None:
        """Each parameter at the first module that has it: tied ones take their bytes once."""
        seen: set[int] = set()
        self._by_module = {}
        for path, module in self._modules():
            own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
            seen.update(map(id, own))
            if own:
                gradients = [p.grad for p in own if p.grad is not None]
                self._by_module[path] = {"parameters": _size(own), "gradients": _size(gradients), "optimizer": 0}

    def _write_modules(self) -> None:
        if self._path is None or not self._by_module:
            return
        states: dict[int, int] = {}
        for optimizer in list(self._optimizers):
            for parameter, state in optimizer.state.items():
                tensors = state.values() if isinstance(state, dict) else ()
                states[id(parameter)] = _size(it for it in tensors if isinstance(it, Tensor))
        for path, module in self._modules():
            if row := self._by_module.get(path):
                row["optimizer"] = sum(states.pop(id(p), 0) for p in module.parameters(recurse=False))
        with contextlib.suppress(OSError):  # a full disk: the table by module is then of before
            draft = self._path.with_suffix(".modules-draft")
            draft.write_text(json.dumps(self._by_module))
            draft.replace(self._path)

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


def _size(tensors: Iterable[Tensor]) -> int:
    """Their bytes; those of a sparse one are not known and count nothing."""
    return sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided)
