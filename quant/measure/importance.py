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

from daf.quant.observers import Observer
from daf.quant.ops import ATTENTION, BATCH_NORMS, LAYER_NORM, LOGARITHMS, PRODUCTS, SAVES_OUTPUT, flow_of
from daf.quant.saved.layout import is_in_memory, layout_of
from daf.quant.torch_internals import number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from daf.quant.saved.handles import View
    from daf.quant.saved.scope import Frame
    from daf.quant.saved.slots import Slot

SAMPLED_ROWS = 64
STRETCH = 1024  # elements
NUM_STRETCHES = 128
ALIKE = 4.0  # neighbours in a picture are alike, so that fewer of a layer's inputs count (ResNet-18: 3 to 5)


@dataclass(slots=True)
class Layer:
    """One call of a layer with a weight to train. Energies are squared norms."""

    path: str
    clock: int
    input_energy: float
    rows: float
    grad_energy: float = 0.0
    fan_in: float = 1.0
    weight_energy: float = 0.0  # of the weight's own gradient

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


@dataclass(slots=True)
class SlotSample:
    """What one sampled step showed of a slot. grad_energy is that of the gradient that flows on from there.

    mean_square is that of the content, where noise counts by itself and not in proportion to it (LOGARITHMS).
    num_saves counts the tensors of the step: a model that is called many times before one backward saves as often. The
    last of them stands for all.
    """

    clock: int
    num_saves: int = 1
    grad_energy: float = 0.0
    mean_square: float = 1.0


@dataclass(slots=True)
class Probe(Observer):
    """Collects one sampled step. Switched on by the engine at the start of a forward, read at the start of the next."""

    is_on: bool = False
    clock: int = 0
    has_adapters: bool = False
    layers: dict[str, Layer] = field(default_factory=dict)
    batch_norms: dict[str, BatchNorm] = field(default_factory=dict)
    layer_norms: dict[str, float] = field(default_factory=dict)  # energy that flows on per relative energy of noise
    layer_norms_alike: dict[str, float] = field(default_factory=dict)  # the same, where rows were made alike in size
    slots: dict[int, SlotSample] = field(default_factory=dict)
    on_failure: Callable[[str, Exception], None] = lambda _text, _error: None
    _good_energy: float = 0.0  # of the last gradient that was finite
    _product: tuple[int, Sequence[Slot]] = (-1, ())

    def start(self) -> None:
        self.is_on = True
        self.clock = 0
        self.has_adapters = False
        self.layers.clear()
        self.batch_norms.clear()
        self.layer_norms.clear()
        self.layer_norms_alike.clear()
        self.slots.clear()

    def see_layer(self, path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module call ended. Notes it if it has a weight matrix or kernel to train, or is a norm."""
        weight = module._parameters.get("weight")
        if not args or type(output) is not Tensor:
            return
        x, node = args[0], output.grad_fn
        if type(x) is not Tensor or not x.is_floating_point() or node is None or not is_in_memory(x):
            return
        if node.name() == LAYER_NORM:
            # A module that ends in a norm of its own is not that norm: its input is another tensor.
            if isinstance(module, nn.LayerNorm) if weight is None else weight.shape == x.shape[-1:]:
                self._see_layer_norm(path, weight, x, node)
        elif weight is None:
            return
        elif not weight.requires_grad:
            self.has_adapters |= weight.dim() > 1
        elif weight.dim() > 1:
            self._see_weights(path, weight, x, node)
        elif node.name() in BATCH_NORMS:
            self._see_batch_norm(path, weight, x, node)

    def _see_layer_norm(self, path: str, weight: Tensor | None, x: Tensor, node: Any) -> None:
        """From a few rows of C elements. dx = rstd (h - mean(h) - x^ mean(h x^)), h = g weight, so noise d in x^ makes
        noise rstd (d mean(h x^) + x^ mean(h d)), of energy rstd^2 d^2 ((sum h x^)^2 + h^2) / C a row.

        Not in proportion to dx: where h lies along x^ the exact one nearly cancels, and the noise does not.
        """
        cols = x.shape[-1]
        rows = _some_rows(x.detach(), cols).float()
        centred = rows - rows.mean(1, keepdim=True)
        rstd = centred.square().mean(1).clamp_min(1e-12).rsqrt()
        normal = centred * rstd[:, None]
        share = x.numel() / rows.numel()
        mean_square = rows.square().mean()

        def note(grads: tuple[Tensor | None, ...]) -> None:
            if grads[0] is not None and is_in_memory(grads[0]):
                scaled = _some_rows(grads[0].detach(), cols).float()
                scaled = scaled if weight is None else scaled * weight.detach()
                product = (scaled * normal).sum(1).square() + scaled.square().sum(1)
                self.layer_norms[path] = share * float((rstd**4 * mean_square * product).sum()) / cols
                self.layer_norms_alike[path] = share * float((rstd**2 * product).sum()) / cols

        self._listen(node.register_prehook, note)

    def _see_batch_norm(self, path: str, weight: Tensor, x: Tensor, node: Any) -> None:
        """The weight's gradient is the sum of g x^ over each channel."""
        before = next(reversed(self.layers.values()), None)
        norm = self.batch_norms[path] = BatchNorm(x.numel() / x.shape[1], 1.0 if before is None else before.fan_in)

        def note(grads: tuple[Tensor | None, ...]) -> None:
            norm.grad_energy = _grads_energy(grads)

        def note_weight(grad: Tensor) -> None:
            hook.remove()
            norm.product_energy = energy_of(grad)

        self._listen(node.register_prehook, note)
        hook = self._listen(weight.register_hook, note_weight)

    def _see_weights(self, path: str, weight: Tensor, x: Tensor, node: Any) -> None:
        self.clock += 1
        # A kernel of k taps reads each input k times (over the stride's square: that is in the gradient's rows).
        is_convolution = weight.dim() > 2
        taps = weight[0, 0].numel() if is_convolution else 1
        channels = x.shape[1] if is_convolution else x.shape[-1]
        layer = Layer(path, self.clock, energy_of(x), x.numel() / channels / taps, fan_in=weight[0].numel())
        self.layers[path] = layer

        def note(grads: tuple[Tensor | None, ...]) -> None:
            layer.grad_energy = _grads_energy(grads)

        def note_weight(grad: Tensor) -> None:
            hook.remove()
            layer.weight_energy = energy_of(grad)

        self._listen(node.register_prehook, note)
        hook = self._listen(weight.register_hook, note_weight)

    def see_slot(self, slot: Slot, tensor: Tensor) -> None:
        self.clock += 1
        before = self.slots.get(slot.id)
        sample = self.slots[slot.id] = SlotSample(self.clock, 1 if before is None else before.num_saves + 1)
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

    def see_read(self, view: View, node: Any) -> None:
        """Factors of one product are partners."""
        if node.name() not in PRODUCTS or not (slots := view.stored.slots()):
            return
        number = number_of(node)
        if self._product[0] == number:
            for one, other in ((slots, self._product[1]), (self._product[1], slots)):
                for slot in one:
                    slot.facts.partners = tuple({slot.id for slot in other})
        self._product = (number, slots)

    def scores(self, slots: Iterable[Slot]) -> dict[int, float]:
        """error^2 per relative energy of noise, by slot id. After a gradient that was not finite (an overflow, which a
        scaler of gradients lets pass), those of before."""
        seen = [slot for slot in slots if slot.id in self.slots]
        found = self._scores(seen)
        if all(map(math.isfinite, found.values())) and math.isfinite(self._layers_energy()):
            self._good_energy = self._layers_energy()
            return found
        return {slot.id: slot.facts.importance for slot in seen}

    @property
    def gradient_energy(self) -> float:
        """The squared norm of the layers' gradients; at least what it would be if rows did not agree."""
        energy = max(self._layers_energy(), sum(layer.weight_energy for layer in self.layers.values()))
        return energy if math.isfinite(energy) else self._good_energy

    def _layers_energy(self) -> float:
        return sum(layer.noise_energy for layer in self.layers.values())

    def _scores(self, slots: list[Slot]) -> dict[int, float]:
        layers = sorted(self.layers.values(), key=lambda layer: layer.clock)
        own = {slot.id: self._score(slot, layers) for slot in slots}
        # What is recomputed from a slot's content shares its noise.
        return {
            slot.id: own[slot.id] + sum(own.get(follower, 0.0) for follower in slot.facts.followers) for slot in slots
        }

    def _score(self, slot: Slot, layers: list[Layer]) -> float:
        sample = self.slots[slot.id]
        into_weights = sum(self.layers[path].noise_energy for path in slot.facts.readers if path in self.layers)
        if norm := self._norm_of(slot):
            into_weights += norm.grad_energy
        flow = sum(self._flow(slot, op) for op in slot.facts.ops)
        return into_weights + (flow * self._arriving(sample, layers) if flow else 0.0)

    def score_recomputed(self, slot: Slot) -> float:
        """The same of a batch norm's input that is recomputed from a ReLU's output."""
        norm, sample = self._norm_of(slot), self.slots[slot.id]
        if norm is None:
            return slot.facts.importance
        return norm.flow_recomputed * sample.grad_energy * self._arriving(sample, list(self.layers.values()))

    def _norm_of(self, slot: Slot) -> BatchNorm | None:
        return None if slot.facts.ops.isdisjoint(BATCH_NORMS) else self.batch_norms.get(slot.path)

    def _arriving(self, sample: SlotSample, layers: list[Layer]) -> float:
        """What the weights of all layers before make of noise in the gradient that flows on, by its energy."""
        return sum(
            layer.input_energy / layer.rows * self._reach(sample, layer)
            for layer in layers
            if layer.clock < sample.clock
        )

    def _reach(self, sample: SlotSample, layer: Layer) -> float:
        """How much of the noise at a slot is left at a layer before it."""
        if not self.has_adapters or layer.grad_energy >= sample.grad_energy:
            return 1.0
        return layer.grad_energy / sample.grad_energy

    def _flow(self, slot: Slot, op: str) -> float:
        """Energy of the noise that flows on from `op`, per relative energy of noise in the slot."""
        if not flow_of(op):
            return 0.0
        if op == LAYER_NORM:
            norms = self.layer_norms_alike if slot.facts.is_input_of_norm else self.layer_norms
            seen = [norms[path] for path in slot.facts.readers if path in norms]
            if seen:
                return sum(seen)
        return self._passing(slot, op) * self._energy_after(slot, op)

    def _passing(self, slot: Slot, op: str) -> float:
        """How much of the slot's relative noise passes into the gradient that flows on."""
        if op in LOGARITHMS:
            return self.slots[slot.id].mean_square
        norm = self.batch_norms.get(slot.path) if op in BATCH_NORMS else None
        return norm.flow if norm is not None else flow_of(op)

    def _energy_after(self, slot: Slot, op: str) -> float:
        """Of the gradient that noise at the slot gets into: the one there, or those of its partners."""
        others = slot.facts.partners if op in PRODUCTS or op in ATTENTION else ()
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


def _some_rows(tensor: Tensor, cols: int) -> Tensor:
    rows = tensor.reshape(-1, cols)
    return rows[:: max(1, len(rows) // SAMPLED_ROWS)][:SAMPLED_ROWS]
