"""What an engine does with the tensors that compiled graphs save: the same slots, ledger, encoder and plan as for eager
code.

A compiled graph has no autograd nodes to listen to. In a sampled step the ops themselves see what importance needs:
the stash the tensor, the unstash the gradient that its first reader takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daf.errors import DafOutOfMemoryError
from daf.quant.compiled.numbers import place_of, readers_of
from daf.quant.compiled.ops import Content, Exact
from daf.quant.encode.backends import NotHereError
from daf.quant.encode.choice import UNPLANNED
from daf.quant.measure.importance import Layer, SlotSample, energy_of
from daf.quant.ops import ATTENTION, RELU, WEIGHT_OPS, node_name
from daf.quant.plan.menu import Kind
from daf.quant.saved.exceptions import why_unreadable
from daf.quant.saved.handles import Exact as KeptExact
from daf.quant.saved.layout import Layout, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from daf.quant.engine import Engine
    from daf.quant.saved.handles import Stored
    from daf.quant.saved.slots import Slot


# Readers whose own gradient, which eager code measures, is what the next layer takes: attention passes on little of
# what it is given, to one layer or to three. With the number of gradients that are as large as what is read.
ABOVE_LAYER = dict.fromkeys(ATTENTION, 3) | {node_name(name): 1 for name in ("Gelu", "Silu", "Mish", "Tanh")}


class Kept(Exact):
    """A copy that the ledger counts."""

    __slots__ = ("_ledger", "_num_bytes")

    def __init__(self, tensor: Tensor, engine: Engine, reason: str, *, is_planned: bool = False) -> None:
        super().__init__(tensor)
        self._ledger, self._num_bytes = engine.ledger, tensor.nbytes
        self._ledger.keep(reason, tensor.nbytes, is_planned=is_planned)
        self._ledger.hold(tensor.nbytes)

    def __del__(self) -> None:
        self._ledger.hold(-self._num_bytes)


class Planes:
    """A tensor of a compiled graph as bit planes."""

    __slots__ = ("_engine", "_layer", "_layout", "_num_flowing", "_sample", "_waiting", "stored")

    def __init__(self, engine: Engine, stored: Stored, layout: Layout, waiting: list[tuple[SlotSample, int]]) -> None:
        """`waiting` are samples of this backward that no layer has followed yet."""
        self._engine = engine
        self._waiting = waiting
        self._num_flowing = 0  # numbers in the gradients that flow on; 0: the next layer says nothing of them
        self.stored = stored
        self._layout = layout
        self._sample: SlotSample | None = None
        self._layer: Layer | None = None

    def sample(self, slot: Slot, tensor: Tensor) -> None:
        probe = self._engine.policy.probe
        probe.see_slot(slot, tensor)
        self._sample = probe.slots.get(slot.id)
        self._num_flowing = tensor.numel() * max((ABOVE_LAYER.get(op, 0) for op in slot.facts.ops), default=0)
        if not WEIGHT_OPS.isdisjoint(slot.facts.ops):
            rows = tensor.numel() / max(1, tensor.shape[-1])
            self._layer = probe.layers[slot.path] = Layer(slot.path, probe.tick(), energy_of(tensor), rows)

    def restore(self, after: Tensor | None) -> Tensor:
        self._engine.scope.note_backward()
        self._engine.ledger.settle()
        if after is not None and self._sample is not None:
            self._note(energy_of(after), after.numel())
        layout = self._layout
        if isinstance(self.stored, KeptExact):
            return self.stored.fetch(layout).clone()
        value = self.stored.decode(layout)
        value = value.as_strided(layout.core_shape, layout.core_strides)
        return value.expand(layout.shape) if layout.is_expanded else value

    def _note(self, grad_energy: float, num_grads: int) -> None:
        """The gradient that a layer takes is the one that flows on from what was read since the layer before."""
        assert self._sample is not None
        self._sample.grad_energy = grad_energy
        if self._layer is not None:
            self._layer.grad_energy = grad_energy
            for sample, numel in self._waiting:
                sample.grad_energy = min(sample.grad_energy, max(1.0, numel / num_grads) * grad_energy)
            self._waiting.clear()
        elif self._num_flowing:
            self._waiting.append((self._sample, self._num_flowing))


class CompiledStore:
    """Stands behind daf::stash while an engine is installed."""

    def __init__(self, engine: Engine, on_failure: Callable[[str, Exception], None]) -> None:
        self._engine = engine
        self._on_failure = on_failure
        self._waiting: list[tuple[SlotSample, int]] = []
        self.num_stashes = 0

    def stash(self, tensor: Tensor, slot_number: int) -> Content:
        engine = self._engine
        self.num_stashes += 1
        engine.ledger.num_packs += 1
        engine.ledger.settle()
        engine.maybe_begin_step()
        try:
            return self._stash(tensor, slot_number)
        except NotHereError as error:
            return Kept(tensor, engine, error.reason)
        except DafOutOfMemoryError:
            return Kept(tensor, engine, "no_room")
        except Exception as error:
            self._on_failure("a tensor of a compiled graph could not be encoded, and is kept exact", error)
            return Kept(tensor, engine, "failure")

    def _stash(self, tensor: Tensor, slot_number: int) -> Content:
        engine = self._engine
        reason = why_unreadable(tensor, engine.min_bytes)
        if reason:
            return Kept(tensor, engine, reason)
        layout = layout_of(tensor.shape, tensor.stride())
        slot = self._slot(tensor, slot_number)
        if reason := engine.why_exact(slot):
            return Kept(tensor, engine, reason)
        if engine.is_elastic and slot.plan.kind is not Kind.COMPRESS:
            return self._keep_exact(tensor, slot)
        stored = engine.encoder.encode(tensor, layout, slot, engine.backends.host)
        if stored is None:
            return Kept(tensor, engine, "not_worth_it", is_planned=bool(slot.facts.curves))
        stored.ticket.wait()  # a compiler may use the tensor's memory again as soon as this op is done
        planes = Planes(engine, stored, layout, self._waiting)
        stored.count_in(engine.context)
        if slot.plan.spec is not None and slot.plan.spec.codec in UNPLANNED:
            engine.ledger.note_exact(stored)
        elif engine.policy.probe.is_on:
            planes.sample(slot, tensor)
        return planes

    def _keep_exact(self, tensor: Tensor, slot: Slot) -> Planes:
        """As the plan says, for now: a copy, which may be compressed later."""
        engine, copy = self._engine, tensor.detach().clone()
        layout = layout_of(copy.shape, copy.stride())
        exact = KeptExact(copy, slot, copy.nbytes, is_relu=slot.facts.is_relu)
        exact.is_consistent = True  # the graph recomputes what attention makes of it
        slot.seen.raw_bytes = slot.seen.stored_bytes = exact.raw_bytes
        slot.seen.num_saves += 1
        planes = Planes(engine, exact, layout, self._waiting)
        exact.count_in(engine.context)
        if engine.policy.probe.is_on:
            engine.encoder.measure(copy, layout, slot, engine.backends.host)
            slot.facts.is_constant = False  # no tensor in a graph has autograd's history
            planes.sample(slot, copy)
        engine.relief.register(exact, layout, engine.backends.host)
        return planes

    def _slot(self, tensor: Tensor, slot_number: int) -> Slot:
        place = place_of(slot_number)
        slot = self._engine.table.at((place, 0, tensor.dtype, tensor.dim()))
        if not slot.facts.readers:
            slot.facts.ops |= readers_of(slot_number)
            slot.facts.is_read = True  # the graph has named them all
            slot.facts.is_relu = RELU in slot.facts.ops
            slot.facts.readers.add(place)
            slot.facts.is_vouched_for = True  # what its readers do was looked at when the graph was compiled
        return slot
