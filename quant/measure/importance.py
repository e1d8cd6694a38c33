"""Importance: how much gradient error the loss of precision at a slot would cause.

Sampled from the ordinary backward, with no passes of its own. In a sampled step three things are noted:

    at each layer l with weights   |x|^2 of its input, |g|^2 of the gradient at its output
    at each slot s                 the distortion curve of its codec (a few groups), |g|^2 of the gradient there
    the order of all of these in the forward

Energies come from stretches spread evenly over a large tensor, so a sampled step costs little more than another.

Noise in what is saved reaches the gradient in two ways:

    into one weight      a linear layer's or convolution's weight gradient is g x^T. Noise of relative energy r in x
                         makes noise r * N_l in it, N_l = taps * |g_l|^2 |x_l|^2 / rows: what the gradient's energy
                         would be if rows did not agree.
    down the backward    noise in a factor of the chain rule (norms, activation functions, attention) makes noise of
                         energy c_op * r * |g_s|^2 in the gradient that flows on, and from there in every layer before,
                         each of which turns it into weight noise in the ratio N_l / |g_l|^2.

So   error^2(s) = r(s) * ( sum of N_l over its readers  +  c_op |g_s|^2 * sum over layers l before s of N_l / |g_l|^2 ).
Where weights are frozen, those to be trained are adapters: noise shrinks on the way into one as the gradient does, from
|g_s|^2 to |g_l|^2.
docs/design/importance.md shows how well this ranks slots against the true error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from daf.quant.measure.factors import Factor, Factors
from daf.quant.measure.norms import NORMS
from daf.quant.observers import Observer
from daf.quant.ops import ATTENTION, BATCH_NORMS, FACTOR_PLACES, LOGARITHMS, SAVES_OUTPUT, flow_of
from daf.quant.saved.handles import HANDLES, Kept
from daf.quant.saved.layout import is_in_memory, layout_of
from daf.quant.torch_internals import leaves_of, next_number, saved_handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from daf.quant.saved.handles import Handle, View
    from daf.quant.saved.scope import Frame
    from daf.quant.saved.slots import Slot

STRETCH = 1024  # elements
NUM_STRETCHES = 128
ALIKE = 4.0  # neighbours in a picture are alike, so that fewer of a layer's inputs count (ResNet-18: 3 to 5)
PULL = 0.1  # of the energy that noise which follows the content makes: as much as codecs of two bits draw to the mean


@dataclass(slots=True)
class Layer:
    """One call of a layer with a weight to train. Energies are squared norms."""

    path: str
    clock: float
    input_energy: float
    rows: float
    grad_energy: float = 0.0

    @property
    def noise_energy(self) -> float:
        """N_l: energy of noise in the weight's gradient per relative energy of noise in the input."""
        return self.grad_energy * self.input_energy / self.rows


@dataclass(slots=True)
class BatchNorm:
    """One call of a batch norm. Its weight's gradient is the sum of g x^, so noise d in x^ makes sum(g d) in it, as in
    a layer's. Down the backward go d * mean(g x^) and x^ * mean(g d). The latter lies along x^, which is a sum of what
    the layer before has read: in that layer's weight it adds up over the rows, where other noise averages out.

    fan_in  of the layer before: that many numbers x is a sum of
    """

    rows: float
    fan_in: float
    grad_energy: float = 0.0
    product_energy: float = 0.0

    @property
    def flow(self) -> float:
        """The energy of both terms over that of g, per relative energy of noise."""
        return (self._product + 1.0 + self._sum) / self.rows

    @property
    def flow_recomputed(self) -> float:
        """The same where x is recomputed from a ReLU's output: noise is only where g is zero, so d * mean(g x^) is all,
        but it goes along with x^ itself."""
        return self._product * (1.0 + self._sum) / self.rows

    @property
    def _product(self) -> float:
        return self.product_energy / self.grad_energy if self.grad_energy else 0.0

    @property
    def _sum(self) -> float:
        return ALIKE * self.rows / self.fan_in


@dataclass(frozen=True, slots=True)
class Gain:
    """A layer with weights to train, as noise meets it in the gradient at its output: gain times its energy."""

    clock: float
    gain: float
    grad_energy: float
    is_table: bool = False


@dataclass(slots=True)
class SlotSample:
    """What one sampled step showed of a slot. grad_energy is that of the gradient that flows on from there.

    mean_square is that of the content, where noise counts by itself and not in proportion to it (LOGARITHMS).
    num_saves counts the tensors of the step: a model that is called many times before one backward saves as often. The
    last of them stands for all.
    """

    clock: float
    num_saves: int = 1
    grad_energy: float = 0.0
    mean_square: float = 1.0


@dataclass(slots=True)
class Probe(Observer):
    """Collects one sampled step. Switched on by the engine at the start of a forward, read at the start of the next."""

    is_on: bool = False
    has_adapters: bool = False
    factors: Factors = field(init=False)
    layers: dict[str, Layer] = field(default_factory=dict)  # of compiled graphs
    batch_norms: dict[str, BatchNorm] = field(default_factory=dict)
    slots: dict[int, SlotSample] = field(default_factory=dict)
    on_failure: Callable[[str, Exception], None] = lambda _text, _error: None
    _good_energy: float = 0.0  # of the last gradient that was finite
    _num_ticks: int = 0

    def __post_init__(self) -> None:
        self.factors = Factors(self._listen, energy_of)

    def start(self) -> None:
        self.is_on = True
        self.has_adapters = False
        self._num_ticks = 0
        self.factors.start()
        self.layers.clear()
        self.batch_norms.clear()
        self.slots.clear()

    def tick(self) -> float:
        """The place in the forward: the number of autograd's next node, and what came first where it is the same."""
        self._num_ticks += 1
        return next_number() + 1e-6 * self._num_ticks

    def see_layer(self, path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module call ended. One with frozen weights that passes gradients on says that adapters are trained."""
        weight = module._parameters.get("weight")
        if not args or type(output) is not Tensor:
            return
        x, node = args[0], output.grad_fn
        if type(x) is not Tensor or not x.is_floating_point() or node is None or not is_in_memory(x):
            return
        if weight is None:
            return
        if not weight.requires_grad:
            self.has_adapters |= weight.dim() > 1
        elif node.name() in BATCH_NORMS:
            self._see_batch_norm(path, weight, x, node)

    def _see_batch_norm(self, path: str, weight: Tensor, x: Tensor, node: Any) -> None:
        """The weight's gradient is the sum of g x^ over each channel."""
        norm = self.batch_norms[path] = BatchNorm(x.numel() / x.shape[1], _fan_in(x.grad_fn))

        def note(grads: tuple[Tensor | None, ...]) -> None:
            norm.grad_energy = _grads_energy(grads)

        def note_weight(grad: Tensor) -> None:
            hook.remove()
            norm.product_energy = energy_of(grad)

        self._listen(node.register_prehook, note)
        hook = self._listen(weight.register_hook, note_weight)

    def see_slot(self, slot: Slot, tensor: Tensor) -> None:
        before = self.slots.get(slot.id)
        sample = self.slots[slot.id] = SlotSample(self.tick(), 1 if before is None else before.num_saves + 1)
        node = tensor.grad_fn

        def note(grads: tuple[Tensor | None, ...], _grad_outputs: object = None) -> None:
            sample.grad_energy = _grads_energy(grads)

        if node is not None and node.name() in LOGARITHMS:
            sample.mean_square = energy_of(tensor) / tensor.numel()
        if node is not None and node.name() in SAVES_OUTPUT:
            self._listen(node.register_hook, note)
        elif node is not None:
            self._listen(node.register_prehook, note)

    def _listen(self, register: Callable[[Callable[..., None]], Any], note: Callable[..., None]) -> Any:
        """Has `note` called in backward. What goes wrong in it costs a sample, never the user's backward."""

        def careful(*grads: Any) -> None:
            try:
                note(*grads)
            except Exception as error:
                self.on_failure("a gradient could not be sampled", error)

        return register(careful)

    def leave_module(self, frame: Frame, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        self.see_layer(frame.path, module, args, output)

    def see_save(self, _frame: Frame, handle: Handle, tensor: Tensor) -> None:
        self.factors.see_save(handle, tensor)

    def begin_backward(self, roots: object) -> None:
        if self.is_on:
            found = (one for one in leaves_of(roots) if isinstance(one, Tensor))
            self._walk([getattr(one, "grad_fn", None) for one in found])

    def see_read(self, _view: View, node: Any) -> None:
        """For a backward that did not begin with torch.autograd.backward."""
        self._walk([node])

    def _walk(self, nodes: Sequence[Any]) -> None:
        try:
            self.factors.walk(nodes)
        except Exception as error:
            self.on_failure("the graph could not be looked through", error)

    def scores(self, slots: Iterable[Slot]) -> dict[int, float]:
        """error^2 per relative energy of noise, by slot id. After a gradient that was not finite (an overflow, which a
        scaler of gradients lets pass), those of before."""
        seen = [slot for slot in slots if slot.id in self.slots]
        self.factors.add_up()
        found = self._scores(seen)
        if all(map(math.isfinite, found.values())) and math.isfinite(self._layers_energy()):
            self._good_energy = self._layers_energy()
            return found
        return {slot.id: slot.facts.importance for slot in seen}

    def own_errors(self, slots: Iterable[Slot]) -> dict[int, float]:
        """Per relative energy of noise, the squared relative error of the worst gradient that an op makes of it."""
        found = {slot.id: 0.0 for slot in slots}
        for factor in self.factors.found:
            for slot_id in factor.slots:
                found[slot_id] = max(found.get(slot_id, 0.0), factor.own_error)
        for slot in slots:
            for source in slot.facts.sources:  # from which it may be recomputed
                found[source] = max(found.get(source, 0.0), found[slot.id])
        return found

    def gains(self) -> dict[int, float]:
        """By slot id: how much noisier a norm's output is than its input, relative to each.

        By a lot where rows differ in size, or lie far from zero.
        """
        return {slot_id: norm.gain for norm in self.factors.norms for slot_id in norm.slots if norm.gain}

    @property
    def gradient_energy(self) -> float:
        """The squared norm of the gradient; after one that was not finite, that of before."""
        energy = self._layers_energy()
        return energy if math.isfinite(energy) else self._good_energy

    def _layers_energy(self) -> float:
        """Of the weights' own gradients, or what it would be if rows did not agree, whichever is less.

        Where rows agree the whole is larger, and noise that is small beside it still slows a loss that falls fast;
        where they cancel it is smaller, and noise drowns it.

        Without embeddings: rows that have never been trained may have gradients larger than all others together, and an
        optimizer that scales steps by gradients sees the others all the same.
        """
        tables = {factor.weight for factor in self.factors.found if factor.is_table}
        whole = sum(energy for key, energy in self.factors.parameters.items() if key not in tables)
        layers = sum(layer.noise_energy for layer in self.layers.values())
        factors = [factor for factor in self.factors.found if factor.weight and not factor.is_table]
        spread = layers + sum(factor.spread for factor in factors)
        return min(spread, whole) if whole and spread else spread or whole

    def _scores(self, slots: list[Slot]) -> dict[int, float]:
        layers = self._gains()
        own = {slot.id: self._score(slot, layers) for slot in slots}
        # What is recomputed from a slot's content shares its noise.
        return {
            slot.id: own[slot.id] + sum(own.get(follower, 0.0) for follower in slot.facts.followers) for slot in slots
        }

    def _gains(self) -> list[Gain]:
        """Of every layer with weights to train."""
        compiled = [Gain(one.clock, one.input_energy / one.rows, one.grad_energy) for one in self.layers.values()]
        seen = [factor for factor in self.factors.found if factor.weight]
        tables = sum(factor.spread for factor in seen if factor.is_table)
        share = min(1.0, self._layers_energy() / tables) if tables else 1.0  # as much as all layers, at most
        gains = (factor.gain * (share if factor.is_table else 1.0) for factor in seen)
        return compiled + [
            Gain(factor.clock, gain, factor.grad_energy, factor.is_table)
            for factor, gain in zip(seen, gains, strict=True)
        ]

    def _score(self, slot: Slot, layers: list[Gain]) -> float:
        sample = self.slots[slot.id]
        into_weights = sum(self.layers[path].noise_energy for path in slot.facts.readers if path in self.layers)
        norm = self._norm_of(slot)
        norms = () if norm else self.factors.norms
        mine = [one for one in (*self.factors.found, *norms) if slot.id in one.slots]
        into_weights += sum(self._product_score(factor, layers) for factor in mine) / sample.num_saves
        if norm:
            into_weights += norm.grad_energy
        flow = sum(self._flow(slot, op) for op in slot.facts.ops)
        return into_weights + (flow * self._arriving(sample.clock, sample.grad_energy, layers) if flow else 0.0)

    def score_recomputed(self, slot: Slot) -> float:
        """The same of a batch norm's input that is recomputed from a ReLU's output."""
        norm, sample = self._norm_of(slot), self.slots[slot.id]
        if norm is None:
            return slot.facts.importance
        arriving = self._arriving(sample.clock, sample.grad_energy, self._gains())
        return norm.flow_recomputed * sample.grad_energy * arriving

    def _norm_of(self, slot: Slot) -> BatchNorm | None:
        return None if slot.facts.ops.isdisjoint(BATCH_NORMS) else self.batch_norms.get(slot.path)

    def _product_score(self, factor: Factor, layers: list[Gain]) -> float:
        if factor.weight:
            return factor.spread + PULL * factor.drawn
        return (factor.spread + PULL * factor.pull) * self._arriving(factor.clock, factor.pull, layers)

    def _arriving(self, clock: float, grad_energy: float, layers: list[Gain]) -> float:
        """How much noise in the gradient at a place becomes in the weights of all layers before it."""
        return sum(layer.gain * self._reach(grad_energy, layer) for layer in layers if layer.clock < clock)

    def _reach(self, grad_energy: float, layer: Gain) -> float:
        """How much of the noise at a slot is left at a layer before it.

        A norm above an embedding whose rows are small makes it grow with the gradient.
        """
        if layer.is_table and grad_energy:
            return max(1.0, layer.grad_energy / grad_energy)
        if not self.has_adapters or layer.grad_energy >= grad_energy:
            return 1.0
        return layer.grad_energy / grad_energy

    def _flow(self, slot: Slot, op: str) -> float:
        """Energy of the noise that flows on from `op`, per relative energy of noise in the slot."""
        is_seen = op in NORMS and slot.id in self.factors.normed and self._norm_of(slot) is None
        if is_seen or op in FACTOR_PLACES or not flow_of(op):
            return 0.0
        return self._passing(slot, op) * self._energy_after(slot, op)

    def _passing(self, slot: Slot, op: str) -> float:
        """How much of the slot's relative noise passes into the gradient that flows on."""
        if op in LOGARITHMS:
            return self.slots[slot.id].mean_square
        norm = self._norm_of(slot) if op in BATCH_NORMS else None
        return norm.flow if norm is not None else flow_of(op)

    def _energy_after(self, slot: Slot, op: str) -> float:
        """Of the gradient that noise at the slot gets into: the one there, or those of its partners."""
        others = slot.facts.partners if op in ATTENTION else ()
        met = [self.slots[slot_id].grad_energy for slot_id in others or (slot.id,) if slot_id in self.slots]
        return sum(met)


def energy_of(tensor: Tensor) -> float:
    """The squared norm; of a large dense tensor an estimate, from stretches of its memory. 0 where it has none."""
    if not is_in_memory(tensor):
        return 0.0
    tensor = tensor.detach()
    layout = layout_of(tensor.shape, tensor.stride())
    num_stretches = tensor.numel() // STRETCH
    every = num_stretches // NUM_STRETCHES
    if every < 2 or not layout.is_dense or layout.is_expanded:
        return _norm(tensor) ** 2
    some = tensor.as_strided((num_stretches // every, STRETCH), (every * STRETCH, 1))
    return _norm(some) ** 2 * (tensor.numel() / some.numel())


def _norm(tensor: Tensor) -> float:
    """In float32 at least: a half's own range is too small for a sum of squares."""
    dtype = torch.float32 if tensor.element_size() < 4 else None
    return float(torch.linalg.vector_norm(tensor, dtype=dtype))


def _grads_energy(grads: tuple[Tensor | None, ...]) -> float:
    return sum(energy_of(grad) for grad in grads if grad is not None)


def _fan_in(node: Any) -> float:
    """How many numbers each that a layer makes is a sum of."""
    handle = None if node is None else saved_handle(node, "weight", HANDLES)
    if not isinstance(handle, Kept) or handle.tensor.dim() < 2:
        return 1.0
    return float(handle.tensor[0].numel())
