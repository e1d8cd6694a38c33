"""What a node does with a tensor that it saved, and so whether that tensor may be compressed.

The table of ops says it for each tensor of each kind of node. Which of its tensors a node asks for, comparing handles
tells. Some uses depend on what is around the node:

    x * r     r = rsqrt(mean(x^2)), a norm written out: the gradient of r is multiplied by r^3 on its way, and r is
              large just where x is small. So a factor is fragile if the other one comes from a root or a quotient.
    x * x     and x^2: linear, unless their sum lies under a root or a quotient, as in a norm written out
    softmax   under a matrix product, as in attention, noise in p is bounded; sigmoid and tanh alike. Else a loss
              may take its logarithm, and divide by p what p is then multiplied by
    attention q, k and v, if its output is recomputed from what they decode to
    a module that is run again: all that it saved is recomputed from one decoded input, so it fits

A slot whose readers were seen, and all of whose readers bear noise, may be compressed; every other is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from daf.quant.encode.choice import EXACT
from daf.quant.ops import (
    ALLOWED,
    AMPLIFIERS,
    DROPOUT,
    FLASH_CPU,
    MATRIX_PRODUCTS,
    MUL,
    OPS,
    POW,
    SAME_TENSOR,
    SOFTMAXES,
    SPREADING,
    Use,
    short,
)
from daf.quant.recompute.module_rerun import AS_OP
from daf.quant.saved.handles import HANDLES, Exact, Handle, Recomputed, View
from daf.quant.torch_internals import can_tell_handles, number_of, saved_fields, saved_handle, saved_handles, setting

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTPUT = "output"  # of fused attention
SQUARE = 2
MAX_HOPS = 8  # between a product and the softmax before it, or a factor and the root that it comes from
_FACTORS = {"self": 1, "other": 0}  # place of the partner among a product's inputs

_fields: dict[str, tuple[str, ...]] = {}  # names of the tensors that a kind of node saves


# Modules of torch that are one op each, or that and a mask: their readers are known before any backward.
_ONE_OP: tuple[type[nn.Module], ...] = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.Hardswish, nn.ReLU, nn.ReLU6, nn.Hardtanh),
    *(nn.GLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)


def is_one_op(module: nn.Module | None) -> bool:
    """Whether a module of torch saves for one op, which bears noise."""
    return type(module) in _ONE_OP


class Uses:
    """Judges reads. Softmax nodes that were met under a matrix product are remembered until the next backward.

    num_surprises counts the reads of compressed content by an op that needs it exact: one that was not seen before.
    """

    def __init__(self) -> None:
        self.num_surprises = 0
        self._under_products: set[int] = set()
        self._under_roots: set[int] = set()

    def begin_backward(self) -> None:
        self._under_products.clear()
        self._under_roots.clear()

    def see_node(self, node: Any) -> None:
        """The node asks for anything at all. A root runs before the squares whose sum it is of."""
        if node.name() in AMPLIFIERS:
            self._under_roots.update(number_of(square) for square in _squares_before(node))

    def see(self, node: Any, view: View) -> None:
        """The node saved, or asks for, what `view` stands for. Its slots remember what forbids compressing it."""
        name = node.name()
        view.stored.learn(AS_OP if view.is_consistent else name)
        if name in MATRIX_PRODUCTS:
            self._under_products.update(number_of(softmax) for softmax in _softmaxes_before(node))
        if view.is_consistent:
            return
        for field in _fields_of(node, name, view):
            use = self.use(node, field) if field is not None else Use.UNKNOWN
            if use not in ALLOWED and not (field and _may_be_recomputed(view, name, field, use)):
                self._forbid(view, f"{short(name)}.{field or '?'}: {use}")

    def use(self, node: Any, field: str) -> Use:
        """What the node does with its saved tensor `field`, seen with what is around it."""
        name = node.name()
        row = OPS.get(name)
        if row is None:
            return Use.UNKNOWN
        use = row.use(field)
        if name in (MUL, POW):
            return Use.LINEAR if self._is_linear(node, name, field) else Use.FRAGILE
        if use is Use.SOFTMAX and number_of(node) not in self._under_products:
            return Use.FRAGILE
        if use is Use.ATTENTION and not _is_recomputed(saved_handle(node, OUTPUT, HANDLES)):
            return Use.FRAGILE
        return use

    def _is_linear(self, node: Any, name: str, field: str) -> bool:
        if number_of(node) in self._under_roots:
            return False
        return setting(node, "exponent") == SQUARE if name == POW else not _is_fragile_factor(node, field)

    def _forbid(self, view: View, use: str) -> None:
        for slot in view.stored.slots():
            if use not in slot.facts.exact_for:
                slot.facts.exact_for.add(use)
                self.num_surprises += slot.plan.spec is not None and slot.plan.spec.codec not in EXACT


def _may_be_recomputed(view: View, name: str, field: str, use: Use) -> bool:
    """Whether content that must fit what else its reader saved is recomputed with that. Of fused attention all is kept
    exact, or its output and log-sum-exp are recomputed (engine.py): the exact ones forbid nothing."""
    stored = view.stored
    if isinstance(stored, Recomputed):
        return use is Use.RECOMPUTED
    if name != FLASH_CPU or not isinstance(stored, Exact) or stored.instead is not None:
        return False
    stored.slot.facts.is_made_to_fit = OPS[name].use(field) is Use.RECOMPUTED
    return True


def _is_recomputed(handle: Handle | None) -> bool:
    return isinstance(handle, View) and isinstance(handle.stored, Recomputed)


def _fields_of(node: Any, name: str, view: View) -> tuple[str | None, ...]:
    """The names by which a node saved what `view` stands for; where that cannot be told, all that it saved.

    (None,): the node saved something else, and a foreign hook that runs for it asks for ours, as a checkpoint does.
    """
    if name not in _fields:
        _fields[name] = saved_fields(node)
    fields = _fields[name]
    if not fields:
        return ("",)
    if not can_tell_handles():
        return fields
    return tuple(field for field, handle in saved_handles(node, HANDLES, fields) if handle is view) or (None,)


def _is_fragile_factor(node: Any, field: str) -> bool:
    partner = node.next_functions[_FACTORS[field]][0] if field in _FACTORS else None
    if partner is None:
        return False
    return any(step.name() in AMPLIFIERS for step in _chain(partner))


def _squares_before(node: Any) -> Iterator[Any]:
    """Products and powers whose sum, or mean, this node is a function of."""
    waiting = [(before, 0) for before, _ in node.next_functions]
    while waiting:
        step, num_hops = waiting.pop()
        if step is None:
            continue
        if step.name() in (MUL, POW):
            yield step
        if num_hops < MAX_HOPS and (step.name() in SPREADING or step.name() == MUL):
            waiting.extend((before, num_hops + 1) for before, _ in step.next_functions)


def _softmaxes_before(node: Any) -> Iterator[Any]:
    """Softmax nodes whose output is a factor of this product, with or without dropout between."""
    for before, _ in node.next_functions:
        for step in _chain(before):
            if step.name() in SOFTMAXES:
                yield step


def _chain(node: Any) -> Iterator[Any]:
    """A node and those before it, as long as they are views, casts or masks of one another."""
    for _ in range(MAX_HOPS):
        if node is None:
            return
        yield node
        if node.name() not in SAME_TENSOR and not _is_mask(node):
            return
        node = node.next_functions[0][0]


def _is_mask(node: Any) -> bool:
    """Dropout, by torch's own op or as a product with noise, which has no history."""
    return node.name() == DROPOUT or (node.name() == MUL and node.next_functions[1][0] is None)
