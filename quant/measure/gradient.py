"""The fidelity monitor: now and then, what compression does to the gradient, layer by layer.

In a measured step every stored tensor keeps its exact content beside the coded one, and the backward runs twice over
the same graph: once handing out the exact contents, once the decoded ones. Same batch, same weights, same dropout, so
the difference is what compression does and nothing else. Between measured steps the monitor costs nothing.

    error    norm of the difference over the norm of the exact gradient
    cosine   of the angle between both
    bias     how much longer (or, negative, shorter) the coded gradient is along the exact one
"""

from __future__ import annotations

import contextlib
import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from daf.quant.observers import Observer

if TYPE_CHECKING:
    from daf.quant.saved.handles import Kept, Stored, View
    from daf.quant.saved.layout import Layout


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How the coded gradient of one layer (or of all) compares with the exact one."""

    layer: str
    norm: float
    error: float
    cosine: float
    bias: float


class Monitor(Observer):
    """Measures every `every` steps from step `first` on; 0: never. Holds the last measurement."""

    def __init__(self, every: int = 0) -> None:
        self.every = every
        self.first = 0
        self.is_on = False
        self.hands_out_exact = False
        self.layers: list[Fidelity] = []
        self.total: Fidelity | None = None
        self.on_measured: Callable[[Fidelity], None] = lambda _total: None
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._contents: weakref.WeakKeyDictionary[Stored, tuple[Tensor, int]] = weakref.WeakKeyDictionary()
        self.awaited: list[Kept] = []  # handles whose content is wanted should they come to stand for something stored

    # -- what the engine tells

    def begin_step(self, number: int) -> None:
        self.is_on = self.every > 0 and number >= self.first and number % self.every == 0

    def see_root(self, module: nn.Module) -> None:
        self._roots.add(module)

    def see_stored(self, view: View, tensor: Tensor) -> None:
        self.keep(view.stored, tensor)

    def keep(self, stored: Stored, tensor: Tensor) -> None:
        """Holds the exact content of `stored` until the graph is gone."""
        self._contents[stored] = (tensor.detach(), tensor._version)

    def wants(self, handle: Kept) -> bool:
        return self.is_on or any(one is handle for one in self.awaited)

    def forget(self) -> None:
        """Lets go of all contents, unless they are kept for a measured step."""
        self.awaited.clear()
        if not self.is_on:
            self._contents.clear()

    def move(self, old: Stored, new: Stored) -> None:
        """`new` takes the place of `old` behind a handle."""
        if old in self._contents:
            self._contents[new] = self._contents[old]

    def exact(self, stored: Stored, layout: Layout) -> Tensor | None:
        """The exact content, if it was kept and nobody wrote over it."""
        content = self._contents.get(stored)
        if content is None or content[0]._version != content[1]:
            return None
        tensor = content[0]
        return tensor.as_strided(layout.shape, layout.strides, tensor.storage_offset())

    # -- measuring

    @contextlib.contextmanager
    def watch_backward(
        self, on_backward: Callable[[Any], None] = lambda _roots: None, on_end: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Puts the extra backward of measured steps before torch's own. `on_backward` gets the roots of each, `on_end`
        runs when it is over."""
        original = torch.autograd.backward

        def backward(  # noqa: PLR0917  (torch's own signature)
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> None:
            on_backward(tensors)
            rest = (retain_graph, create_graph, grad_variables, inputs)
            is_measured = self.is_on and not create_graph and grad_variables is None and inputs is None
            self.is_on = self.is_on and not is_measured
            with self._measure(tensors, grad_tensors) if is_measured else contextlib.nullcontext():
                original(tensors, grad_tensors, *rest)
            on_end()

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    @contextlib.contextmanager
    def _measure(self, tensors: Any, grad_tensors: Any) -> Iterator[None]:
        named = [
            (name, parameter)
            for root in list(self._roots)
            for name, parameter in root.named_parameters()
            if parameter.requires_grad
        ]
        exact = self._exact_gradients(tensors, grad_tensors, [parameter for _, parameter in named])
        before = [None if p.grad is None else p.grad.detach().clone() for _, p in named]
        yield
        pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for (name, parameter), want, old in zip(named, exact, before, strict=True):
            if want is not None and parameter.grad is not None:
                got = parameter.grad.detach() if old is None else parameter.grad.detach() - old
                pairs.setdefault(name.rpartition(".")[0] or name, []).append((got, want))
        self.layers = [compare(layer, some) for layer, some in pairs.items()]
        self.total = compare("all", [pair for some in pairs.values() for pair in some])
        self._contents.clear()
        self.on_measured(self.total)

    def _exact_gradients(self, tensors: Any, grad_tensors: Any, parameters: list[Tensor]) -> list[Tensor | None]:
        if not parameters:
            return []
        self.hands_out_exact = True
        try:
            return list(torch.autograd.grad(tensors, parameters, grad_tensors, retain_graph=True, allow_unused=True))
        except RuntimeError as error:
            warnings.warn(f"daf: the gradient could not be measured ({error})", stacklevel=4)
            return [None] * len(parameters)
        finally:
            self.hands_out_exact = False


def compare(layer: str, pairs: list[tuple[Tensor, Tensor]]) -> Fidelity:
    """Compares gradients (ours, exact) of one layer's parameters, taken together as one vector."""
    ours = sum(_energy(a) for a, _ in pairs)
    exact = sum(_energy(b) for _, b in pairs)
    both = sum(_dot(a, b) for a, b in pairs)
    difference = sum(_energy(a - b) for a, b in pairs)
    if exact == 0.0:
        return Fidelity(layer, 0.0, 0.0 if difference == 0.0 else math.inf, 1.0, 0.0)
    cosine = both / math.sqrt(ours * exact) if ours else 0.0
    return Fidelity(layer, math.sqrt(exact), math.sqrt(difference / exact), cosine, both / exact - 1.0)


def _dot(a: Tensor, b: Tensor) -> float:
    """In float32, which is a quarter of the work, unless that is too narrow."""
    value = float(torch.dot(a.flatten().float(), b.flatten().float()))
    if value and math.isfinite(value):
        return value
    return float(torch.dot(a.flatten().double(), b.flatten().double()))


def _energy(a: Tensor) -> float:
    return _dot(a, a)
