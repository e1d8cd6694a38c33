"""How much a training step will need, from what can be seen when it runs out of memory.

    needed = the most that could not be freed so far
           + gradients and optimizer state that do not exist yet
           + what the backward of a request such as the one that failed takes beside it
           + a margin, since the rest of the step is not known

Parameters and optimizers are found among the objects that Python's collector knows: nobody passes them to DAF.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from typing import Any

MARGIN = 1.05
MARGIN_BYTES = 1 << 20
STATES = {"SGD": 0, "Adagrad": 1, "RMSprop": 1, "ASGD": 1}  # tensors like the parameter; all others: two
DEFAULT_STATES = 2
NUM_TEMPORARIES = 3  # of the largest parameter, while its optimizer works on it
NUM_BESIDE = 2  # activations beside one in its backward: its gradient, its input's gradient
NUM_BESIDE_UNSEEN = 8  # where no backward has been seen yet, and most of forward may be still to come


def step_bytes(arena: Any, stats: Mapping[str, float], least_bytes: int, asked_bytes: int) -> int:
    """Return a budget that should hold the step; 0 where `arena` does not serve torch's parameters."""
    parameters = [it for it in _objects("nn", "Parameter") if _is_in(arena, it)]
    if not parameters:
        return 0
    optimizers = _objects("optim", "Optimizer")
    gradients = sum(it.nbytes for it in parameters if it.requires_grad and it.grad is None)
    missing, all_states = _state_bytes(optimizers, parameters)
    is_first = missing > 0 or stats["steps_total"] <= 1  # what was seen so far was without the optimizer's state
    peak = max(stats["step_peak_held_bytes"], stats["last_step_held_bytes"]) + (all_states if is_first else 0)
    largest = max(it.nbytes for it in parameters)
    beside = NUM_BESIDE_UNSEEN if stats["steps_total"] == 0 else NUM_BESIDE
    if not gradients or any(it.nbytes == asked_bytes for it in parameters):
        beside = 0  # no activation was asked for, but a gradient or the optimizer's state, which is counted
    now = least_bytes + gradients + missing + beside * asked_bytes
    return int((max(now, peak) + NUM_TEMPORARIES * largest) * MARGIN) + MARGIN_BYTES


def _objects(module: str, name: str) -> list[Any]:
    """Return every living object of torch's class `module.name`, or of a class derived from it."""
    kind = getattr(getattr(sys.modules.get("torch"), module, None), name, None)
    return [] if kind is None else [it for it in gc.get_objects() if issubclass(type(it), kind)]


def _is_in(arena: Any, parameter: Any) -> bool:
    try:
        return bool(arena.owns(parameter.data_ptr()))
    except RuntimeError:  # no storage: a fake tensor, one on the meta device
        return False


def _state_bytes(optimizers: Iterable[Any], parameters: Iterable[Any]) -> tuple[int, int]:
    """Return the bytes of optimizer state that do not exist yet, and of all of it."""
    ours = {id(it) for it in parameters}
    missing = total = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            count = _num_states(optimizer, group)
            for parameter in group["params"]:
                if id(parameter) in ours and parameter.requires_grad:
                    total += count * parameter.nbytes
                    missing += 0 if optimizer.state.get(parameter) else count * parameter.nbytes
    return missing, total


def _num_states(optimizer: Any, group: Mapping[str, Any]) -> int:
    count = STATES.get(type(optimizer).__name__, DEFAULT_STATES)
    extra = any(group.get(name) for name in ("momentum", "amsgrad", "centered"))
    return count + int(extra)
