"""Activation functions written out in several ops, run again instead of stored.

`0.5 * x * (1 + tanh(...))` saves four tensors where one suffices: all of them, and the output, follow from x. Such a
module is run again in backward on the decoded x, and its i-th save then is what its i-th save was.

A module is trusted with this only after a check: at its first call it is run a second time at once, and every save and
the output must come out the same to the last bit. A module with random or hidden state fails, and is left alone.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from daf.quant.joint import Joint
from daf.quant.layout import layout_of

if TYPE_CHECKING:
    from daf.quant.handles import Derived, Handle

# Cheap by name: pointwise functions and norms. torch.nn's own are single ops, which derive.py handles.
_CHEAP = re.compile(r"GELU|SiLU|Swish|Mish|ReLUSquared|RMSNorm|Activation$")
OUTPUT = "output"


def is_candidate(module: nn.Module) -> bool:
    kind = type(module)
    return (
        _CHEAP.search(kind.__name__) is not None
        and not kind.__module__.startswith("torch.")
        and not module._modules
        and not module._buffers
    )


class Call:
    """One call of such a module, from its entry to its exit.

    saves    what it saved so far, in order: (tensor, handle), held until the exit of a call that is being checked
    """

    def __init__(self, module: nn.Module, source: Tensor) -> None:
        self.module = module
        self.source = source
        self.num_saves = 0
        self.saves: list[tuple[Tensor, Handle]] = []
        self.joint: Joint | None = None
        kind = source.device.type
        dtype, is_enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self._autocast = {"device_type": kind, "dtype": dtype, "enabled": is_enabled}

    def start(self, handle: Handle) -> None:
        """From here on saves may be derived; `handle` is how the input is stored."""
        module, autocast = self.module, self._autocast
        self.joint = Joint(lambda: run_again(module, handle.restore(), autocast), (handle,))

    def member(self, name: Hashable, tensor: Tensor) -> Derived:
        assert self.joint is not None
        return self.joint.member(name, layout_of(tensor.shape, tensor.stride()), tensor.dtype)

    def comes_out_the_same(self, output: Tensor) -> bool:
        """Runs the module once more on the true input and compares every save and the output."""
        values = run_again(self.module, self.source, self._autocast)
        want: dict[Hashable, Tensor] = {i: tensor for i, (tensor, _) in enumerate(self.saves)}
        want[OUTPUT] = output
        return len(values) == len(want) and all(torch.equal(values[name], want[name]) for name in want)


class Trust:
    """Which modules passed the check. Keyed by identity beside a weak reference, as in scope.py."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}

    def of(self, module: nn.Module) -> bool | None:
        known = self._known.get(id(module))
        return known[1] if known is not None and known[0]() is module else None

    def set(self, module: nn.Module, is_trusted: bool) -> None:
        self._known[id(module)] = (weakref.ref(module), is_trusted)


def run_again(module: nn.Module, x: Tensor, autocast: dict[str, Any]) -> dict[Hashable, Tensor]:
    """The module's saves by their number, and its output."""
    values: dict[Hashable, Tensor] = {}

    def collect(tensor: Tensor) -> None:
        values[len(values)] = tensor.detach()

    def refuse(_packed: None) -> Tensor:
        raise AssertionError("a call that is run again has no backward of its own")

    with (
        torch.enable_grad(),
        torch.autocast(**autocast),
        torch.autograd.graph.saved_tensors_hooks(collect, refuse),
    ):
        output = module.forward(x.detach().requires_grad_())
    values[OUTPUT] = output.detach()
    return values
