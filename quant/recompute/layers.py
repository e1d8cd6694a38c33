"""Content recomputed through layers: a linear layer's output from its input and its weight, which have not changed.

Between two norms of a transformer everything can be recomputed from the first norm's output: q, k and v by one product,
the wide hidden layer by another. This follows the graph from the node that made a tensor back to what is stored, over
products, sums, views, casts and masks. Each node has one step; what two ways share is computed once (graph.py).

    tensor ── View ── Addmm ── mat1: stored ─────────────── a source
                        │  └── mat2: a weight ───────────── a constant: its version is compared, as autograd does
                        └───── bias: a parameter ────────── a constant

No graph says all: a mask that was added, a frozen bias, leave no trace. So no way is taken before it was tried: once at
every slot, in a step that keeps all exact, the content is worked out and compared with the true one (`Proof`).
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from daf.quant.recompute.graph import Walk
from daf.quant.saved.handles import Exact, Handle, Kept, Recipe, Recomputed, Stored, View
from daf.quant.saved.layout import Layout, is_in_memory, layout_of
from daf.quant.saved.ledger import storage_key

if TYPE_CHECKING:
    from daf.quant.saved.context import Context
    from daf.quant.saved.slots import Slot

SECONDS_PER_BYTE = 8e-9  # of a layer that is run again: 768 products for each number, on one core of a server of 2020
NUM_TRIES = 2  # of which the faster counts: the first may wait for memory
CLOSE = 1e-5  # relative energy of the difference between what was and what is recomputed, by rounding in bfloat16


@dataclass(frozen=True, slots=True)
class Way:
    """How content is recomputed: through which weights, and what is the same in every step."""

    weights: tuple[Kept, ...] = ()
    signature: tuple[object, ...] = ()


class Through(Recomputed):
    """Content that is recomputed through layers. Its readers are its own slot's: the planner counts the way to them."""

    __slots__ = ("held", "way", "weights")

    def __init__(self, recipe: Recipe, layout: Layout, dtype: torch.dtype, way: Way) -> None:
        super().__init__(recipe, layout, dtype, layout.numel * dtype.itemsize)
        self.weights = way.weights
        self.way = way.signature
        self.held: Tensor | None = None

    def learn(self, op: str) -> None:
        if self.slot is None:
            return super().learn(op)
        self.slot.facts.ops.add(op)
        return None

    def slots(self) -> list[Slot]:
        return super().slots() if self.slot is None else [self.slot]

    def decode(self, layout: Layout) -> Tensor:
        return super().decode(layout) if self.held is None else self.held

    def hold(self) -> None:
        """Works it out while the weights are what they were."""
        if self.held is None:
            self.held = super().decode(self.layout)


class Part(Through):
    """A view of content that is recomputed: its elements lie as far apart as they were saved."""

    __slots__ = ()

    def fetch(self, layout: Layout) -> Tensor:
        self.num_uses -= 1
        value = self.decoded
        if value is None:
            value = self.compute() if self.held is None else self.held
            if self.num_uses > 0 and self.context is not None:
                self.context.decoded.hold(self, value)
        elif self.num_uses <= 0:
            self.decoded = None
        if value.shape == layout.shape and value.stride() == layout.strides:
            return value
        return value.as_strided(layout.shape, layout.strides, value.storage_offset())

    def hold(self) -> None:
        if self.held is None:
            self.held = self.compute()


@dataclass(frozen=True, slots=True)
class Proof:
    """What trying showed: whether it came out the same, and how long it took."""

    is_same: bool
    seconds: float = 0.0


class ThroughLayers:
    """Finds the ways of one engine, and watches the weights that they go through. Deterministic: a way's time is not
    measured but taken to go with its bytes, so that plans do not depend on the machine's load."""

    def __init__(
        self, context: Context, modules: Callable[[], list[nn.Module]], *, is_deterministic: bool = False
    ) -> None:
        self._is_deterministic = is_deterministic
        self._context = context
        self._modules = modules
        self._biases: dict[int, weakref.ref[nn.Module]] = {}
        self._live: weakref.WeakSet[Through] = weakref.WeakSet()
        self._may_follow: bool | None = None
        self._proofs: dict[int, Proof] = {}
        self._proved: dict[tuple[object, ...], Proof] = {}

    def begin_step(self) -> None:
        self._may_follow = None

    def follow(self, tensor: Tensor, layout: Layout) -> Through | None:
        """How to work out `tensor`, if that takes nothing but what is stored and weights."""
        if layout.is_expanded or not self._may_follow_weights():
            return None
        owner = tensor if tensor._base is None else tensor._base
        if owner.grad_fn is None or owner.dtype is not tensor.dtype:
            return None
        if owner is tensor:
            return self._from_graph(tensor)
        whole = self._whole(owner)
        return None if whole is None else self._part(tensor, layout, owner, whole)

    def sources_of(self, tensor: Tensor, layout: Layout, slot: Slot) -> tuple[int, ...]:
        """The slots that `tensor` can be recomputed from. None are named before it was tried."""
        content = self.follow(tensor, layout)
        if content is None:
            return ()
        proof = self._proofs.get(slot.id) or self._proved.get(content.way)
        if proof is None:
            if not all(_is_exact(handle) for handle in content.compute.sources):
                return ()
            proof = self._proved[content.way] = _try(content, tensor, layout)
        self._proofs[slot.id] = proof
        estimate = SECONDS_PER_BYTE * tensor.nbytes
        slot.facts.recompute_seconds = estimate if self._is_deterministic else proof.seconds
        return slots_before(content.compute.sources) if proof.is_same else ()

    def planned(self, tensor: Tensor, layout: Layout, slot: Slot) -> Through | None:
        """The content of a slot that is to be recomputed, if it was proved that it can be."""
        proof = self._proofs.get(slot.id)
        return self.follow(tensor, layout) if proof is not None and proof.is_same else None

    @contextlib.contextmanager
    def watching_optimizers(self) -> Iterator[None]:
        """While entered, hears of every optimizer's step before it changes weights."""

        def before_step(optimizer: torch.optim.Optimizer, *_args: object) -> None:
            self.before_change(weight for group in optimizer.param_groups for weight in group["params"])

        handle = register_optimizer_step_pre_hook(before_step)
        try:
            yield
        finally:
            handle.remove()

    def before_change(self, parameters: Iterable[Tensor]) -> None:
        """These parameters are about to change: what still needs them is worked out now."""
        waiting = [content for content in list(self._live) if content.num_uses > 0 and content.held is None]
        if not waiting:
            return
        changing = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        for content in waiting:
            if any(weight.tensor.untyped_storage().data_ptr() in changing for weight in content.weights):
                content.hold()

    def _whole(self, owner: Tensor) -> Stored | None:
        """The content that views are views of: one for all of them, so that it is worked out once."""
        layout = layout_of(owner.shape, owner.stride())
        if not layout.is_dense or layout.is_expanded:
            return None
        key = storage_key(owner, layout)
        stored = self._context.ledger.find(key)
        if stored is not None and stored.is_content_of(owner):
            return stored
        found = self._from_graph(owner)
        if found is not None:
            found.enter(self._context, key, owner)
        return found

    def _part(self, tensor: Tensor, layout: Layout, owner: Tensor, whole: Stored) -> Through:
        view = View(whole, layout_of(owner.shape, owner.stride()))
        offset = tensor.storage_offset() - owner.storage_offset()
        shape, strides = layout.shape, layout.strides

        def compute() -> Tensor:
            return view.restore().as_strided(shape, strides, offset)

        recipe = Recipe(compute, (view,))
        way = Way((), ("of a stored one",))
        if isinstance(whole, Through):
            way = Way(whole.weights, (*whole.way, shape[1:], strides, offset))
        return self._watched(Part(recipe, layout, tensor.dtype, way))

    def _from_graph(self, tensor: Tensor) -> Through | None:
        walk = Walk(self._context, self._bias_of, tensor)
        recipe = walk.to(tensor.grad_fn, tensor.output_nr)
        if recipe is None or not recipe.sources:
            return None
        layout = layout_of(tensor.shape, tensor.stride())
        way = Way(tuple(walk.weights), walk.signature)
        return self._watched(Through(recipe, layout, tensor.dtype, way))

    def _watched(self, content: Through) -> Through:
        self._live.add(content)
        return content

    def _may_follow_weights(self) -> bool:
        """Not where weights come and go: FSDP takes them away after each forward."""
        if self._may_follow is None:
            modules = self._modules()
            self._may_follow = not any(type(module).__name__.startswith(_COMING_AND_GOING) for module in modules)
            self._biases = {
                weight.data_ptr(): weakref.ref(module)
                for module in modules
                if type(weight := module._parameters.get("weight")) is nn.Parameter and is_in_memory(weight)
            }
        return self._may_follow

    def _bias_of(self, weight: Tensor) -> Tensor | None:
        """A frozen bias: that of the module with this weight. Proof shows whether it was that."""
        found = self._biases.get(weight.data_ptr())
        module = None if found is None else found()
        return None if module is None else module._parameters.get("bias")


_COMING_AND_GOING = ("FSDP", "FullyShardedDataParallel")


def slots_before(handles: Iterable[Handle]) -> tuple[int, ...]:
    """The slots that these contents come from: their own, or those of what they are recomputed from."""
    found: dict[int, None] = {}
    for handle in handles:
        if not isinstance(handle, View):
            continue
        stored = handle.stored
        if isinstance(stored, Recomputed):
            slot_ids = (stored.slot.id,) if stored.slot is not None else slots_before(stored.compute.sources)
            found.update(dict.fromkeys(slot_ids))
        else:
            found.update(dict.fromkeys(slot.id for slot in stored.slots()))
    return tuple(found)


def _is_exact(handle: Handle) -> bool:
    """Whether what it restores is to the last bit what was saved, or rounded otherwise at most."""
    if not isinstance(handle, View):
        return True
    stored = handle.stored
    if isinstance(stored, Recomputed):
        return all(map(_is_exact, stored.compute.sources))
    return stored.is_bit_exact or (isinstance(stored, Exact) and stored.instead is None)


def _try(content: Through, tensor: Tensor, layout: Layout) -> Proof:
    seconds = math.inf
    try:
        for _ in range(NUM_TRIES):
            began = time.perf_counter()
            value = content.fetch(layout)
            seconds = min(seconds, time.perf_counter() - began)
    except RuntimeError:
        return Proof(is_same=False)
    wanted = tensor.detach()
    value = value.view(wanted.shape) if value.shape != wanted.shape else value
    away, whole = float((value - wanted).float().square().sum()), float(wanted.float().square().sum())
    return Proof(away <= CLOSE * whole, seconds)
