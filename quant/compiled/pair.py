"""The pairs of hooks that torch inlines into compiled graphs, whichever engine is on.

torch inlines hooks that are `fx.GraphModule`s, and compiles anew when others are pushed: so there is one pair for all
engines that were asked to compress, and one for each size of budget, whose graphs are plain torch's where they fit.
In eager code all are the engine's own pack and unpack. Where a graph is compiled, it decides each tensor (graphs.py):

    exact        the tensor itself
    stashed      (handle, sizes, strides, dtype, slot)
    recomputed   (sizes, strides, dtype, slot), no tensor at all
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from daf.quant._gate import Gate
from daf.quant.compiled import ops
from daf.quant.compiled.dynamo import stay_out
from daf.quant.compiled.graphs import Decision, Exact, GraphPair, Recomputed, Rules

VERSION = 1  # of what is decided for a graph: part of the key under which torch caches compiled graphs on disk
_AOT = "torch._functorch._aot_autograd.graph_compile"


class Target(Protocol):
    """What an engine is to a pair."""

    @property
    def rules(self) -> Rules: ...

    @property
    def free_bytes(self) -> int: ...

    @property
    def taken_bytes(self) -> int: ...

    def pack(self, tensor: Tensor) -> Any: ...

    def unpack(self, handle: Any) -> Tensor: ...


_targets: list[weakref.ref[Target]] = []  # installed last, or removed and still held by something


class Pair:
    """Both hooks. With a budget, graphs that fit it are left as they are; the budget is a part of the key of torch's
    cache on disk, so it must be one of few.

    spared_bytes   the budget below which a graph that was left plain would not have been; 0: none was
    """

    def __init__(self, budget_bytes: int = 0) -> None:
        ops.define()
        self.spared_bytes = 0
        self._budget_bytes = budget_bytes
        self._graphs: weakref.WeakKeyDictionary[Any, GraphPair] = weakref.WeakKeyDictionary()
        said = f"{VERSION} {budget_bytes or ''}".rstrip()
        self.hooks = (_graph_module("pack", said, self.pack), _graph_module("unpack", said, self.unpack))
        stay_out(self.pack, self.unpack)

    def go_through(self, gate: Gate | None) -> None:
        """Eager saves are asked for at a gate first, whose slow ways are `pack` and `unpack`; None: at none."""
        for module, name in zip(self.hooks, ("pack", "unpack"), strict=True):
            kind: Any = type(module)
            kind.__call__ = getattr(gate, name) if gate is not None else _hand_on(getattr(self, name))

    def pack(self, tensor: Tensor) -> Any:
        target = _target()
        if type(tensor) is not Tensor and (context := _compiling()) is not None:
            return tensor if target is None else self._inline_pack(tensor, context, target)
        return tensor.detach() if target is None else target.pack(tensor)

    def unpack(self, handle: Any) -> Any:
        if isinstance(handle, tuple | Tensor):
            return _inline_unpack(handle)
        target = _target()
        return handle.restore() if target is None else target.unpack(handle)

    def _inline_pack(self, tensor: Tensor, context: dict[str, Any], target: Target) -> Any:
        decision = self._decide(context, target)
        if isinstance(decision, Exact):
            return tensor
        shape = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, decision.number
        if isinstance(decision, Recomputed):
            return shape
        return (torch.ops.daf.stash(tensor, decision.number), *shape)

    def _decide(self, context: dict[str, Any], target: Target) -> Decision:
        if why_not():
            return Exact(why_not())
        forward = context["_fw_graph"]
        graphs = self._graphs.get(forward)
        if graphs is None:
            room_bytes = min(self._budget_bytes, target.free_bytes) if self._budget_bytes else None
            graphs = GraphPair(forward, context["_bw_graph"], target.rules, room_bytes)
            self._graphs[forward] = graphs
            if graphs.spared_bytes:
                self.spared_bytes = max(self.spared_bytes, target.taken_bytes + graphs.spared_bytes)
        return graphs.decide(context["_node"].name)


def _target() -> Target | None:
    return _targets[0]() if _targets else None


def _inline_unpack(packed: Any) -> Any:
    if isinstance(packed, Tensor):
        return packed
    if len(packed) == 4:
        return torch.ops.daf.recomputed(*packed)
    handle, *shape = packed
    return torch.ops.daf.unstash(handle, handle, *shape)


def _compiling() -> dict[str, Any] | None:
    """Graphs and node for which torch asks a hook now; None where it is asked in eager code."""
    module = sys.modules.get(_AOT)
    ask = getattr(module, "_get_saved_tensor_hook_context", None)
    return None if ask is None else ask()


def _graph_module(name: str, said: str, call: Callable[[Any], Any]) -> Any:
    """A GraphModule in name only: its graph is what torch's cache on disk sees of it."""
    graph = torch.fx.Graph()
    graph.output((graph.placeholder("saved"), f"daf {name} {said}"))
    module = torch.fx.GraphModule(nn.Module(), graph, class_name=f"Daf{name.title()}")

    kind: Any = type(module)  # a class of this module's own
    kind.__call__ = _hand_on(call)
    return module


def _hand_on(call: Callable[[Any], Any]) -> Callable[[object, Any], Any]:
    def hand_on(_self: object, argument: Any) -> Any:
        return call(argument)

    stay_out(hand_on)
    return hand_on


@functools.cache
def pair(budget_bytes: int = 0) -> Pair:
    return Pair(budget_bytes)


def budget_pair(budget_bytes: int) -> Pair:
    """For a budget that may be ample: of budgets between two powers of two there is one pair."""
    return pair(1 << (budget_bytes.bit_length() - 1))


@contextlib.contextmanager
def serving(target: Target, store: ops.Store) -> Iterator[None]:
    """Has the pairs, and the ops in graphs that were compiled whenever, work for this engine."""
    _targets[:] = [weakref.ref(target)]
    ops.handles.store = store
    try:
        yield
    finally:
        if ops.handles.store is store:
            ops.handles.close()


@functools.cache
def why_not() -> str:
    """Why the installed torch cannot carry DAF in compiled graphs; "" where it can. Asked once a graph is compiled."""
    try:
        from torch._functorch._aot_autograd import graph_compile

        source = inspect.getsource(graph_compile.maybe_inline_graph_saved_tensors_hooks)
    except (ImportError, AttributeError, OSError):
        return f"torch {torch.__version__} does not inline hooks for saved tensors"
    if "bw_g.lint()" not in source or not hasattr(graph_compile, "_get_saved_tensor_hook_context"):
        return f"torch {torch.__version__} inlines hooks for saved tensors in a way that DAF does not know"
    return ""
