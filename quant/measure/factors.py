"""Factors: what noise in one factor of a product does to the gradient of the other, seen at the node itself.

In a sampled step the graph is looked through once, when its backward begins: every product (of matrices, a convolution,
of elements) of which a factor was saved through us is noted, whoever made it: a layer, a function called by hand, a
weight that is worked out from others. A hook on the node then sees the gradient that arrives and those that it makes:

    spread  |A|^2 |g|^2 fan / numel(A)   of C = A B: the energy that noise of A's own energy makes in B's gradient if it
                                         is independent; fan: how many elements of dB one of g gets into
    pull    |dB|^2                       the same of noise that follows A: a codec that draws values to the mean makes
                                         dB shorter. Over all uses of one weight that adds up

The other factor is a weight (its gradient is what is wanted) or an activation (noise flows on from there). The input of
a norm is treated alike (norms.py): noise flows on from there, and is in the gradient of the norm's weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from daf.quant.measure.norms import NORMS, noise_of
from daf.quant.ops import ACCUMULATE, EMBEDDING, FACTOR_PLACES, MATRIX_PRODUCTS, MUL
from daf.quant.saved.handles import HANDLES, Kept, Recomputed, View
from daf.quant.saved.layout import is_in_memory
from daf.quant.torch_internals import number_of, saved_handle

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NODES = 20_000  # looked at in one step
MAX_WEIGHT_NODES = 16  # between a weight and the parameters that it is made of

Listen = Callable[[Callable[..., Any], Callable[..., None]], Any]
EnergyOf = Callable[[Tensor], float]


@dataclass(slots=True)
class Factor:
    """One saved factor of one product.

    clock          number of the node: later nodes have higher ones
    slots          ids of the slots that the content comes from; none of ours if it is kept exact for good
    mean_square    of the content
    weight         the parameter that the other factor is made of, as a number; 0: it is an activation
    fan            0: as many as a kernel has, known when its gradient is
    gain           energy in the other's gradient by that of the one that arrives; of a norm, in its output by its input
    is_table       an embedding's rows
    is_by_element  each element of the content meets one of the gradient, and noise is small where the content is
    """

    clock: int
    slots: tuple[int, ...]
    mean_square: float
    weight: int
    fan: float
    is_by_element: bool = False
    is_table: bool = False
    gain: float = 0.0
    grad_energy: float = 0.0
    spread: float = 0.0
    pull: float = 0.0
    drawn: float = 0.0

    @property
    def own_error(self) -> float:
        """Squared relative error of the gradient that the op makes, per relative energy of independent noise."""
        if self.pull:
            return self.spread / max(self.pull, self.drawn)
        return math.inf if self.spread else 0.0

    def note(self, grad: Tensor, made: Tensor | None, energy_of: EnergyOf) -> None:
        """The node ran: `grad` arrived, `made` is the other factor's gradient."""
        if made is None:
            return
        self.grad_energy = energy_of(grad)
        fan = self.fan or made.numel() / max(1, grad.shape[1])
        self.gain = self.mean_square * fan
        self.pull = energy_of(made)
        self.spread = self.pull if self.is_by_element else self.gain * self.grad_energy


@dataclass(slots=True)
class Factors:
    """Those of one sampled step, and the energy of the gradients of its parameters."""

    listen: Listen
    energy_of: EnergyOf
    found: list[Factor] = field(default_factory=list)
    norms: list[Factor] = field(default_factory=list)
    normed: set[int] = field(default_factory=set)  # slots that norms read
    parameters: dict[int, float] = field(default_factory=dict)
    mean_squares: dict[int, float] = field(default_factory=dict)  # by id of the handle
    _seen: set[tuple[int, str]] = field(default_factory=set)
    _hooks: list[Any] = field(default_factory=list)

    def start(self) -> None:
        self.close()
        self.found.clear()
        self.norms.clear()
        self.normed.clear()
        self.parameters.clear()
        self.mean_squares.clear()
        self._seen.clear()

    def close(self) -> None:
        """Parameters outlive the graph, and so would hooks on them."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def add_up(self) -> None:
        """When the step is over: uses of one weight draw its gradient the same way."""
        lengths: dict[int, float] = {}
        for one in self.found:
            lengths[one.weight] = lengths.get(one.weight, 0.0) + math.sqrt(one.pull)
        for one in self.found:
            if one.weight:
                one.drawn = math.sqrt(one.pull) * lengths[one.weight]

    def see_save(self, handle: object, tensor: Tensor) -> None:
        if isinstance(handle, View) and tensor.is_floating_point():
            self.mean_squares[id(handle)] = self.energy_of(tensor) / max(1, tensor.numel())

    def walk(self, nodes: Iterable[Any]) -> None:
        """Notes the products behind these nodes that no walk has met."""
        waiting = [node for node in nodes if node is not None]
        while waiting and len(self._seen) < MAX_NODES:
            node = waiting.pop()
            name = node.name()
            key = (id(node.variable) if name == ACCUMULATE else number_of(node), name)
            if key in self._seen:
                continue
            self._seen.add(key)
            if name == ACCUMULATE:
                self._watch(node)
                continue
            if name in FACTOR_PLACES:
                self._note(node, name, key[0])
            elif name in NORMS:
                self._note_norm(node, key[0])
            elif name == EMBEDDING:
                self._note_embedding(node, key[0])
            waiting.extend(before for before, _ in node.next_functions if before is not None)

    def _watch(self, node: Any) -> None:
        if isinstance(node.variable, Parameter):
            key = id(node.variable)

            def note(grads: tuple[Tensor | None, ...]) -> None:
                self.parameters[key] = sum(self.energy_of(grad) for grad in grads if grad is not None)

            self._hooks.append(self.listen(node.register_prehook, note))

    def _note(self, node: Any, name: str, number: int) -> None:
        made: list[tuple[int, Factor]] = []
        for saved, (is_first, partner) in FACTOR_PLACES[name].items():
            other = node.next_functions[partner][0] if partner < len(node.next_functions) else None
            handle = saved_handle(node, saved, HANDLES)
            if other is None or handle is None or (isinstance(handle, Kept) and not is_in_memory(handle.tensor)):
                continue
            factor = self._factor(handle, number, name, other, is_first=is_first)
            if factor.slots or factor.weight:
                made.append((partner, factor))
        if not made:
            return

        def note(grad_inputs: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...]) -> None:
            if grads and grads[0] is not None:  # nothing where the node was met while it ran
                for place, factor in made:
                    factor.note(grads[0], grad_inputs[place], self.energy_of)

        self.found += [factor for _, factor in made]
        self.listen(node.register_hook, note)

    def _note_norm(self, node: Any, number: int) -> None:
        handle = saved_handle(node, "input", HANDLES)
        slots = _slots_of(handle)
        noise = noise_of(node, are_rows_alike=_are_rows_alike(handle)) if slots else None
        if noise is None:
            return
        flow = Factor(number, slots, self.mean_squares.get(id(handle), 0.0), 0, 1.0)
        into_weight = Factor(number, slots, flow.mean_square, weight=-1, fan=1.0)

        def note(grad_inputs: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...]) -> None:
            grad, made_of = grads[0] if grads else None, grad_inputs[0]
            if grad is None or made_of is None or not is_in_memory(grad) or not is_in_memory(made_of):
                return
            flow.spread, into_weight.spread, flow.gain = noise(grad, made_of, flow.mean_square)
            flow.pull = self.energy_of(made_of)
            made = grad_inputs[1]
            into_weight.spread = into_weight.spread if made is not None else 0.0
            into_weight.pull = self.energy_of(made) if made is not None else 0.0

        self.norms += [flow, into_weight]
        self.normed.update(slots)
        self.listen(node.register_hook, note)

    def _note_embedding(self, node: Any, number: int) -> None:
        """Rows of the gradient are added to rows of the weight's: noise arrives there as it is."""
        before = node.next_functions[0][0]
        weight = 0 if before is None else weight_of(before)
        if not weight:
            return
        factor = Factor(number, (), 1.0, weight, 1.0, gain=1.0, is_table=True)

        def note(_grad_inputs: object, grads: tuple[Tensor | None, ...]) -> None:
            if grads and grads[0] is not None:
                factor.grad_energy = factor.spread = self.energy_of(grads[0])

        self.found.append(factor)
        self.listen(node.register_hook, note)

    def _factor(self, handle: Any, number: int, name: str, other: Any, *, is_first: bool) -> Factor:
        mean_square = self.mean_squares.get(id(handle), 0.0)
        while isinstance(handle, Kept) and handle.instead is not None:
            handle = handle.instead
        if isinstance(handle, Kept) and handle.tensor.is_floating_point() and is_in_memory(handle.tensor):
            mean_square = self.energy_of(handle.tensor) / max(1, handle.tensor.numel())
        fan = 1.0 if name == MUL else 0.0
        if name != MUL and "Convolution" not in name:
            shape = handle.layout.shape
            fan = float(shape[-1 if is_first else -2]) if len(shape) > 1 else 0.0
        return Factor(number, _slots_of(handle), mean_square, weight_of(other), fan, name == MUL)


def _are_rows_alike(handle: View) -> bool:
    return all(slot.facts.is_input_of_norm for slot in handle.stored.slots())


def _slots_of(handle: Any) -> tuple[int, ...]:
    """The slots whose noise is in the content: its own alone, where the planner counts its readers there.

    None where all that the node saved is recomputed from one input: what noise does there is no sum over its factors.
    """
    if not isinstance(handle, View) or handle.is_consistent:
        return ()
    stored = handle.stored
    if isinstance(stored, Recomputed) and stored.slot is not None:
        return (stored.slot.id,)
    return tuple(slot.id for slot in stored.slots())


def weight_of(node: Any) -> int:
    """A number for the parameter that a node's output is made of.

    0 where it takes more than a few steps or a product of matrices, or other tensors than parameters.
    """
    waiting, num_met, found = [node], 0, 0
    while waiting:
        node = waiting.pop()
        num_met += 1
        name = node.name()
        if name in MATRIX_PRODUCTS or num_met > MAX_WEIGHT_NODES:
            return 0
        if name == ACCUMULATE:
            if not isinstance(node.variable, Parameter):
                return 0
            found = found or id(node.variable)
        waiting.extend(before for before, _ in node.next_functions if before is not None)
    return found
