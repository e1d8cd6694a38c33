"""Who reads a slot, and whether they bear noise.

Readers are known for sure once a backward has asked for the content. Before the first backward they are found in the
graph: when a module call ends, the nodes behind its output that were not met yet are looked through for our handles.
A content of which some save was not found that way (an op that still runs, a Function written in Python) is left exact.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from daf.quant.ops import ALLOWED, ATTENTION, BATCH_NORMS, LOGARITHMS, MAX_POOL, NLL_LOSS, OPS, WEIGHT_OPS, Use, flow_of
from daf.quant.recompute.module_rerun import AS_OP
from daf.quant.recompute.rules import handle_of
from daf.quant.saved.handles import Exact, View
from daf.quant.torch_internals import leaves_of, number_of, saved_fields

if TYPE_CHECKING:
    from daf.quant.saved.slots import Slot

_EXACT_USES = frozenset({Use.FRAGILE, Use.UNKNOWN, Use.WORKSPACE, Use.INDEX, Use.LOGPROB})
# Noise in what these read is noise in a gradient, or bounded; all others get exact content.
BENIGN = (
    frozenset(
        name
        for name, op in OPS.items()
        if not _EXACT_USES.intersection(op.uses.values()) and not ALLOWED.isdisjoint({op.rest, *op.uses.values()})
    )
    | ATTENTION
    | BATCH_NORMS
    | {MAX_POOL}  # its indices are integers, which no codec of floats gets
)
MAX_NODES = 4096  # looked at in one module call

_names: dict[str, tuple[str, ...]] = {}  # of the tensors that a kind of node saves


def may_compress(slot: Slot) -> bool:
    """Whether all readers that are known bear noise. A slot without readers is exact."""
    ops = slot.facts.ops
    if not ops or not ops <= BENIGN or slot.facts.exact_for or not slot.facts.is_finite:
        return False
    # What has no gradient of its own (a loss's target, a log-sum-exp, a mask) shows no importance either, and yet the
    # gradient may hang on it. Only a batch that weights are multiplied with is known to matter as its layer does.
    return not slot.facts.is_constant or (ops <= WEIGHT_OPS and slot.facts.importance > 0)


def is_free(slot: Slot) -> bool:
    """Whether noise in it does nothing whatever the gradient is: only its zeros, or its size, are read."""
    return not any(flow_of(op) or op in WEIGHT_OPS for op in slot.facts.ops)


def is_logarithm(slot: Slot) -> bool:
    """Whether it holds log-probabilities: coded, they err by a factor of the probability. Exact, unless that means to
    run out of memory."""
    ops = slot.facts.ops
    return slot.facts.is_finite and not ops.isdisjoint(LOGARITHMS) and ops <= BENIGN | LOGARITHMS | {NLL_LOSS}


def is_recomputable(slot: Slot) -> bool:
    """Whether it need not be stored, though it may not be compressed either."""
    return is_logarithm(slot) and slot.facts.is_through_layers and bool(slot.facts.sources)


class SeenNodes(threading.local):
    """Numbers of the nodes that were looked through in this step: each thread numbers its own."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()


def find_readers(output: object, seen: set[int]) -> None:
    """Notes the readers among the nodes behind `output`, but for those `seen` and what lies behind these."""
    for node in _nodes(output, seen):
        op = node.name()
        for name in _saved_names(node, op):
            handle = handle_of(node, name)
            if isinstance(handle, View) and isinstance(handle.stored, Exact):
                handle.stored.find(AS_OP if handle.is_consistent else op)


def _nodes(output: object, seen: set[int]) -> Iterator[Any]:
    waiting = [leaf.grad_fn for leaf in leaves_of(output) if isinstance(leaf, Tensor)]
    left = MAX_NODES
    while waiting and left:
        node = waiting.pop()
        if node is not None and (number := number_of(node)) not in seen:
            seen.add(number)
            left -= 1
            yield node
            waiting.extend(before for before, _ in node.next_functions)


def _saved_names(node: Any, op: str) -> tuple[str, ...]:
    if op not in _names:
        _names[op] = saved_fields(node)
    return _names[op]
