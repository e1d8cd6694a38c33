"""Activation functions written out in several ops, run again instead of stored.

`0.5 * x * (1 + tanh(...))` saves four tensors where one suffices: x gives them all, and the output.
Such a module is run again in backward on the decoded x, and its i-th save then is what its i-th save was.

A module is trusted with this only after a check: at its first call it is run a second time at once, and every save and
the output must come out the same to the last bit. A module with random or hidden state fails, and is left alone.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from daf.quant.observers import Observer
from daf.quant.ops import GELU
from daf.quant.recompute.shared_run import SharedRun
from daf.quant.saved.handles import Compressed, Exact, Handle, Kept, Recomputed, View
from daf.quant.saved.layout import is_in_memory, is_same_memory, layout_of
from daf.quant.saved.ledger import storage_key

if TYPE_CHECKING:
    from daf.quant.saved.context import Context
    from daf.quant.saved.scope import Frame

# Cheap by name: pointwise functions and norms. torch.nn's own are single ops, which rules.py handles.
_CHEAP = re.compile(r"GELU|SiLU|Swish|Mish|ReLUSquared|RMSNorm|Activation$")
OUTPUT = "output"
MAX_KNOWN = 4096  # modules, before those that are gone are looked for
AS_OP = GELU


def is_candidate(module: nn.Module) -> bool:
    kind = type(module)
    return (
        _CHEAP.search(kind.__name__) is not None
        and (not kind.__module__.startswith("torch.") or kind is nn.RMSNorm)  # which is several ops on the CPU
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
        self.saves: list[tuple[Tensor, Handle]] = []
        self.run: SharedRun | None = None
        kind = source.device.type
        dtype, is_enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self._autocast = {"device_type": kind, "dtype": dtype, "enabled": is_enabled}

    def start(self, handle: Handle) -> None:
        """From here on saves may be recomputed; `handle` is how the input is stored."""
        module, autocast = self.module, self._autocast
        self.run = SharedRun(lambda: run_again(module, handle.restore(), autocast), (handle,))

    def member(self, name: Hashable, tensor: Tensor) -> Recomputed:
        assert self.run is not None
        member = self.run.member(name, layout_of(tensor.shape, tensor.stride()), tensor.dtype)
        if name != OUTPUT:  # what reads it is part of the function, which is run again as a whole
            member.read_as = AS_OP
        return member

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
        if len(self._known) > MAX_KNOWN:
            self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}
        self._known[id(module)] = (weakref.ref(module), is_trusted)


class Reruns(Observer):
    """Follows the calls of such modules. `pack` stores a call's input as the engine would."""

    def __init__(self, pack: Callable[[Tensor, nn.Module], Handle], context: Context, *, is_on: bool) -> None:
        self.is_on = is_on
        self._pack = pack
        self._context = context
        self._trust = Trust()

    def enter(self, module: nn.Module, args: tuple[object, ...]) -> Call | None:
        if not self.is_on or not is_candidate(module) or self._trust.of(module) is False:
            return None
        if len(args) != 1 or type(args[0]) is not Tensor or not torch.is_grad_enabled() or not args[0].requires_grad:
            return None
        if not (args[0].is_cpu or args[0].is_cuda) or not is_in_memory(args[0]):
            return None
        call = Call(module, args[0])
        if not self._trust.of(module):
            return call
        handle = self._pack(call.source, call.module)
        if not isinstance(handle, View):
            return None  # kept exact, so there is nothing to fit
        call.start(handle)
        return call

    def see_save(self, frame: Frame, handle: Handle, tensor: Tensor) -> None:
        if frame.call is not None:
            frame.call.saves.append((tensor.detach(), handle))

    def leave_module(self, frame: Frame, _module: nn.Module, _args: tuple[Any, ...], output: object) -> None:
        call = frame.call
        if call is None or type(output) is not Tensor or not output.requires_grad:
            return
        if call.run is not None or self._is_trusted_from_now_on(call, output):
            self._offer_output(call, output)

    def _offer_output(self, call: Call, output: Tensor) -> None:
        """Whoever saves the module's output finds it recomputed, as long as one of its other saves lives."""
        layout = layout_of(output.shape, output.stride())
        holder = next(
            (handle for _, handle in call.saves if type(handle) is View and type(handle.stored) is Recomputed), None
        )
        key = storage_key(output, layout)
        if holder is not None and layout.is_dense and self._context.ledger.find(key) is None:
            recomputed = call.member(OUTPUT, output)
            recomputed.enter(self._context, key, output)
            holder.companion = recomputed

    def _is_trusted_from_now_on(self, call: Call, output: Tensor) -> bool:
        """Whether running it again pays, and comes out the same."""
        numbers = [n for n, (tensor, handle) in enumerate(call.saves) if _is_intermediate(call, tensor, handle)]
        handle = self._pack(call.source, call.module) if numbers else None
        is_trusted = isinstance(handle, View) and call.comes_out_the_same(output)
        self._trust.set(call.module, is_trusted)
        if handle is not None and is_trusted:
            call.start(handle)
            for number in numbers:
                tensor, handle = call.saves[number]
                handle.supersede(call.member(number, tensor))
            for _, handle in call.saves:
                if isinstance(handle, View):
                    handle.is_consistent = True
        return is_trusted


def _is_intermediate(call: Call, tensor: Tensor, handle: Handle) -> bool:
    """Whether a save is of something that the module made: large or a statistic, it must fit the decoded input."""
    if is_same_memory(tensor, call.source):
        return False
    if isinstance(handle, Kept):
        return not handle.tensor.requires_grad
    return type(handle) is View and type(handle.stored) in {Compressed, Exact}


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
