"""The engine: autograd's saved tensors are kept exact, recomputed, or stored in the arena as bit planes.

    with Engine(arena, bits=2):
        loss = model(x); loss.backward()

`pack` runs at every save and `unpack` at every use. A save takes three steps, all in `_pack`: is it kept exact, is its
content stored already or can it be recomputed, else store it. Whatever goes wrong inside costs compression, never the
run: the tensor is then kept exact, and counted.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from daf.errors import DafOutOfMemoryError
from daf.quant import ops
from daf.quant._gate import Gate
from daf.quant.compiled.dynamo import stay_out
from daf.quant.compiled.graphs import Rules
from daf.quant.compiled.inlining import Inlining
from daf.quant.compiled.pair import Pair, pair, serving, why_not
from daf.quant.compiled.store import CompiledStore
from daf.quant.encode.backends import Backend, Backends, NotHereError
from daf.quant.encode.choice import UNPLANNED, Chooser, is_relu_like
from daf.quant.encode.encoder import Encoder
from daf.quant.encode.masks import fingerprint, is_constant
from daf.quant.encode.packing_choice import make_packer
from daf.quant.measure.gradient import Monitor
from daf.quant.measure.op import SpotCheck
from daf.quant.ops import LAYER_NORM, is_attention
from daf.quant.patches.rrelu import past_hooks
from daf.quant.patches.slices import Slices
from daf.quant.plan.guard import Guard
from daf.quant.plan.menu import Kind
from daf.quant.plan.policy import Policy, Wish
from daf.quant.plan.readers import SeenNodes, find_readers
from daf.quant.plan.relief import Relief
from daf.quant.recompute import attention
from daf.quant.recompute.batchnorm_relu import NormInputs
from daf.quant.recompute.layernorm_bound import bound_input
from daf.quant.recompute.layers import ThroughLayers, slots_before
from daf.quant.recompute.module_rerun import AS_OP, Reruns
from daf.quant.recompute.recurrent import Layers
from daf.quant.recompute.rules import handle_of, recipe_of
from daf.quant.rest import Rest
from daf.quant.saved.context import Context
from daf.quant.saved.exceptions import is_saved_by_compiled_graph, why_kept, why_unreadable
from daf.quant.saved.handles import Awaited, Exact, Handle, Kept, Recomputed, Stored, View
from daf.quant.saved.layout import Layout, is_same_memory, layout_of
from daf.quant.saved.ledger import Ledger, StorageKey, storage_key
from daf.quant.saved.scope import Frame, Scope
from daf.quant.saved.slots import Slot, SlotTable
from daf.quant.saved.uses import Uses, is_one_op
from daf.quant.torch_internals import current_node

if TYPE_CHECKING:
    from daf.allocator import Arena
    from daf.quant.observers import Observer
    from daf.quant.recompute.module_rerun import Call

DEFAULT_WISH = Wish()
MIN_BYTES = 16 * 1024  # below this, headers and tail pages eat what coding saves
INPUT_ORDER = 1 << 16
SLICES = 128  # of the budget: the most that one slice of a convolution's input takes, where memory is short


@dataclass(slots=True)
class Save:
    """One tensor on its way through the engine: where it lies, who saves it, what its storage is known by."""

    tensor: Tensor
    layout: Layout
    frame: Frame
    backend: Backend
    key: StorageKey


class Engine:
    """Holds what one run needs: arena, slots, ledger, the codec choice, and those who observe."""

    def __init__(
        self,
        arena: Arena,
        bits: int | str = "auto",
        floor: int = 1,
        *,
        wish: Wish = DEFAULT_WISH,
        min_bytes: int = MIN_BYTES,
        packing: str = "inline",
        rounding: str = "nearest",
        is_deterministic: bool = False,
    ) -> None:
        self.arena = arena
        self.backends = Backends(arena)
        self.encoder = Encoder(Chooser(bits, rounding), floor, make_packer(packing))
        self.min_bytes = min_bytes
        self.ledger = Ledger(arena.count_saved)
        self.monitor = Monitor()
        self.context = Context(self.ledger, self.monitor)
        self.table = SlotTable()
        self.scope = Scope()
        self.policy = Policy(arena, self.table, self.ledger, self.monitor, wish=wish if bits == "auto" else None)
        self.policy.probe.on_failure = self._fail
        self.guard = Guard(arena)
        self.spot = SpotCheck(arena, self.monitor, self.policy.publish, self.guard.judge)
        self.is_active = False
        self.is_elastic = bits == "auto"
        self.may_recompute = bits != "lossless"
        self._is_off = bits == "off"
        self._is_paused = self._has_device = False
        self._packing = packing
        self._step_began = 0.0
        self._uses = Uses()
        self._running = attention.Running(set(), set())
        self._lstm = Layers()
        self._through = ThroughLayers(self.context, self.scope.modules, is_deterministic=is_deterministic)
        self._reruns = Reruns(self._pack_input, self.context, is_on=self.may_recompute)
        norm_inputs = NormInputs(self.encoder.may_recompute_at, is_on=self.may_recompute)
        self._observers: tuple[Observer, ...] = (
            *(self._running, self._reruns, self.policy.probe, self.monitor, self.spot, norm_inputs),
        )
        self.relief = Relief(self.encoder, self.ledger)
        self._new_slots = True  # whose readers no backward has shown yet
        self._is_pressed = False  # memory ran short in this step
        self._seen_nodes = SeenNodes()
        self._slices = Slices()
        self._compiled = CompiledStore(self, self._fail)
        stay_out(self.pack, self.unpack)
        self.gate = self._make_gate(self)
        self._inlining = self._make_inlining(is_asked=bits != "auto" or bool(wish))
        self._hooks = self._inlining.hooks
        self._rest = Rest(self._hooks, self.scope, self.policy, self.ledger, self._may_rest)
        self._inlined_at = -1
        self._warned: set[str] = set()
        self._undo = contextlib.ExitStack()

    def _make_inlining(self, *, is_asked: bool) -> Inlining:
        return Inlining(
            (self.gate.pack, self.gate.unpack),
            lambda: int(self.arena.stats()["budget_bytes"]),
            lambda: self.num_stashes,
            self._wake,
            is_asked=is_asked,
        )

    # -- on and off

    def install(self) -> Engine:
        """Switches the engine on: in this thread now, in others at their next module call. With bits="off" torch saves
        as ever: nothing is hooked."""
        if self.is_active:
            return self
        self.is_active = True
        if self._is_off:
            return self
        self.scope.install(on_root=self._enter_root, on_enter=self._enter_module, on_leave=self._leave_module)
        self._undo.callback(self.scope.remove)
        self._undo.enter_context(self.monitor.watch_backward(self._begin_backward, self._end_backward))
        self._undo.enter_context(past_hooks())
        self._undo.enter_context(self._through.watching_optimizers())
        self._undo.callback(self._slices.resize, 0)
        self._undo.enter_context(serving(self, self._compiled))
        self._undo.enter_context(self._inlining.watched())
        self._undo.callback(self._leave_pair)
        if self._inlining.is_complete:
            self._gate_pair()
        self._hooks.install()
        self._undo.callback(self._hooks.remove)
        if self.is_elastic:
            self._undo.callback(self.relief.watch(self.arena, self._rest.watch))
            self._undo.callback(self._rest.stop)
        return self

    def remove(self) -> None:
        """Switches it off, and gives back all that was changed in torch. Graphs that hold handles can still run their
        backward."""
        if not self.is_active:
            return
        self.is_active = False
        self.gate.is_open = False
        if self.scope.is_after_backward():
            self.policy.end_last_step()
        self._undo.close()
        self.ledger.settle()  # no save follows that would
        self._close_packer()

    def _close_packer(self) -> None:
        """What is still on its way is packed before anyone closes the arena."""
        packer, self.encoder.packer = self.encoder.packer, make_packer(self._packing)
        try:
            packer.close()
        except Exception as error:
            self._fail("a saved tensor could not be packed", error)

    @property
    def rules(self) -> Rules:
        """What is to be done with the tensors that compiled graphs save."""
        return Rules(
            self.min_bytes,
            may_recompute=self.may_recompute,
            is_exact=self.encoder.chooser.bits == "lossless",
            num_alike=self.scope.num_of_class,
        )

    @property
    def num_stashes(self) -> int:
        """How many tensors compiled graphs have given to the engine, exact ones too."""
        return self._compiled.num_stashes

    @property
    def free_bytes(self) -> int:
        """What the budget leaves."""
        return int(self.arena.stats()["budget_bytes"]) - self.taken_bytes

    @property
    def taken_bytes(self) -> int:
        stats = self.arena.stats()
        return int(stats.get("resident_bytes", 0) - stats.get("cached_bytes", 0))

    def __enter__(self) -> Engine:
        return self.install()

    def __exit__(self, *_exc: object) -> None:
        self.remove()

    # -- the two hooks, behind a gate that answers for what is small or a parameter

    def _make_gate(self, slow: Engine | Pair) -> Gate:
        return Gate(
            pack=slow.pack,
            unpack=slow.unpack,
            context=self.context,
            books=self.ledger.books,
            min_bytes=self.min_bytes,
            detach=Tensor.detach,
            current_node=current_node,
            tensor_type=Tensor,
            parameter_type=Parameter,
            kept_type=Kept,
        )

    def _gate_pair(self) -> None:
        """The pair that compiled graphs inline has the gate before it too."""
        self.gate.is_open = False
        self.gate = self._make_gate(pair())
        pair().go_through(self.gate)

    def _leave_pair(self) -> None:
        if self._inlining.is_complete:
            pair().go_through(None)

    def pack(self, tensor: Tensor) -> Handle:
        self.ledger.num_packs += 1
        self.ledger.settle()
        if not self._hooks.is_wanted:
            self._hooks.pop()
            return Kept(tensor, self.context, 0)
        self.maybe_begin_step()
        if self.relief.is_news:
            self._save_memory()
        frame = self.scope.frame()
        try:
            handle = self._pack(tensor, frame)
        except NotHereError as error:
            if error.text:
                self._warn(error.text)
            handle = self._keep(tensor, error.reason)
        except DafOutOfMemoryError:
            self._warn("the budget has no room left for saved activations, even at their floors; they are kept exact")
            handle = self._keep(tensor, "no_room")
        except Exception as error:
            self._fail("a saved tensor could not be encoded, and is kept exact", error)
            handle = self._keep(tensor, "failure")
        try:
            for observer in self._observers:
                if observer.is_on:
                    observer.see_save(frame, handle, tensor)
        except (DafOutOfMemoryError, torch.OutOfMemoryError):
            self.ledger.num_failures += 1  # no more than this observation: the next step makes it again
        except Exception as error:
            self._fail("a save could not be observed", error)
        return handle

    def _pack(self, tensor: Tensor, frame: Frame) -> Handle:
        reason = why_unreadable(tensor, self.min_bytes)
        if reason:
            return self._keep_or_fit(tensor, frame, reason)
        if is_saved_by_compiled_graph(depth=2):
            return self._keep_of_compiled(tensor)
        layout = layout_of(tensor.shape, tensor.stride())
        reason = why_kept(tensor, layout, frame, self.min_bytes)
        if reason:
            return self._keep_or_fit(tensor, frame, reason)
        frame.order += 1
        backend = self.backends.host if tensor.is_cpu else self._on_device(tensor)
        save = Save(tensor, layout, frame, backend, storage_key(tensor, layout))
        found = self._find(save)
        if found is not None:
            return found
        if self.is_elastic:
            return self._as_planned(save)
        return self._recompute(save) or self._store(save)

    def _pack_input(self, tensor: Tensor, module: torch.nn.Module) -> Handle:
        """Saves the input of a module that is run again: not one of the module's own saves, which keep their order."""
        frame = self.scope.frame()
        order, frame.order, frame.inputs_of = frame.order, INPUT_ORDER, module
        try:
            handle = self.pack(tensor)
        finally:
            frame.order, frame.inputs_of = order, None
        if isinstance(handle, View) and isinstance(handle.stored, Exact):
            handle.stored.find(AS_OP)  # no node of the graph reads it
        return handle

    def unpack(self, handle: Handle) -> Tensor:
        self.scope.note_backward()
        self.ledger.settle()
        node = current_node()
        if node is not None:
            try:
                if type(node) not in self.gate.known_nodes:
                    self._meet(node)
                if type(handle) is View:
                    self._see_read(handle, node)
            except Exception as error:
                self._fail("what reads a saved tensor could not be observed", error)
        return self.spot.restore(handle) if self.spot.is_running else handle.restore()

    # -- the three ways of a save

    def _find(self, save: Save) -> View | None:
        """The content, where another save has stored it."""
        stored = self.ledger.find(save.key)
        if stored is None or not stored.is_content_of(save.tensor):
            return None
        self.ledger.num_shared += 1
        if not stored.is_saved:
            stored.count_in(self.context)
        stored.note_reader(save.frame.path)
        if isinstance(stored, Exact):
            stored.num_saves += 1
        return View(stored, save.layout, is_consistent=_is_run_again(save.frame))

    def _as_planned(self, save: Save) -> Handle:
        """Kept exact, unless the plan says otherwise and can be followed."""
        slot = self._slot(save)
        slot.facts.is_input_of_norm = slot.facts.is_input_of_norm or is_input_of_norm(save.frame, slot)
        kind = Kind.KEEP if self._is_paused else slot.plan.kind
        if _is_run_again(save.frame):
            kind = Kind.RECOMPUTE  # as all that this module saves: one of them alone would not fit the others
        if self.policy.may_recompute and _is_of_lstm(save.tensor):
            kind = Kind.RECOMPUTE
        if kind is Kind.COMPRESS:
            return self._store(save)
        if kind is Kind.RECOMPUTE and slot.facts.can_recompute and not slot.facts.sources:
            return self._store(save)
        if kind is Kind.RECOMPUTE or self._is_pressed:
            recomputed = self._recompute(save, slot)
            if recomputed is not None:
                return recomputed
        return self._keep_exact(save, slot)

    def _keep_exact(self, save: Save, slot: Slot) -> Handle:
        tensor, node = save.tensor, save.tensor.grad_fn
        if node is not None and node.name() in attention.KINDS and not attention.is_exact(node):
            recomputed = self._recompute(save, slot)
            if recomputed is not None:
                return recomputed
        if tensor.nbytes < self.min_bytes:
            return self._keep(tensor, "small")
        num_bytes = save.layout.numel * tensor.element_size()
        exact = Exact(tensor, slot, num_bytes, is_relu=is_relu_like(tensor, slot))
        slot.facts.is_constant = is_constant(tensor)
        self._new_slots = self._new_slots or not slot.facts.is_read
        slot.seen.raw_bytes = slot.seen.stored_bytes = exact.raw_bytes
        slot.seen.num_saves += 1
        if self.encoder.is_sampling:
            self._sample(save, slot)
        view = self._enter(save, exact)
        self.relief.register(exact, save.layout, save.backend)
        if self.relief.is_filling and self.policy.is_first_step:
            self._reruns.is_on = self.may_recompute  # nobody knows yet whether the rest of the step fits
        return view

    def _sample(self, save: Save, slot: Slot) -> None:
        self.encoder.measure(save.tensor, save.layout, slot, save.backend)
        slot.facts.sources = self._sources(save, slot)
        for observer in self._observers:
            if observer.is_on:
                observer.see_slot(slot, save.tensor)

    def _sources(self, save: Save, slot: Slot) -> tuple[int, ...]:
        """The slots that a tensor could be recomputed from."""
        owner = save.tensor if save.tensor._base is None else save.tensor._base
        node = owner.grad_fn
        is_whole = save.layout.is_dense and (owner is save.tensor or is_same_memory(save.tensor, owner))
        slot.facts.is_through_layers = False
        call = save.frame.call
        if call is not None and call.run is not None:
            return slots_before(call.run.sources)
        if node is not None and is_whole:
            if node.name() in attention.KINDS:
                return attention.sources_of(node)
            recipe = recipe_of(node)
            if recipe is not None:
                return slots_before(recipe.sources)
        slot.facts.is_through_layers = True
        if not self.may_recompute or slot.facts.is_input_of_norm:
            return ()  # where ways through layers end: they would lead back to the first one
        return self._through.sources_of(save.tensor, save.layout, slot)

    def _recompute(self, save: Save, slot: Slot | None = None) -> View | None:
        """How to recompute the content, if all that takes is stored."""
        self._running.is_on = not save.backend.is_host
        stored = self._recipe(save) if self.may_recompute else None
        if stored is None and slot is not None and slot.plan.kind is Kind.RECOMPUTE:
            stored = self._through.planned(save.tensor, save.layout, slot)
        if stored is None:
            return None
        if slot is not None:
            stored.slot = slot
            slot.seen.raw_bytes, slot.seen.stored_bytes = stored.raw_bytes, 0
            if self.encoder.is_sampling:
                self._sample(save, slot)
        return self._enter(save, stored)

    def _slot(self, save: Save) -> Slot:
        return self.table.at((save.frame.path, save.frame.order, save.tensor.dtype, len(save.layout.shape)))

    def _store(self, save: Save) -> Handle:
        slot = self._slot(save)
        if reason := self.why_exact(slot):
            return self._keep(save.tensor, reason)
        slot.facts.is_vouched_for = is_one_op(save.frame.module)
        if not save.backend.is_host:
            self._running.check(slot.facts.ops)
        may_wait = self.context.decoded.has_room and not self.encoder.is_sampling
        if slot.plan.is_recomputed and slot.facts.can_recompute and may_wait:
            return Awaited(save.tensor, self.context, slot)
        stored = self.encoder.encode(save.tensor, save.layout, slot, save.backend)
        if slot.plan.spec is not None and slot.plan.spec.codec in UNPLANNED:
            self.ledger.note_exact(stored)
        else:
            for observer in self._observers:
                if observer.is_on:
                    observer.see_slot(slot, save.tensor)
        if stored is None:
            return self._keep(save.tensor, "not_worth_it", is_planned=bool(slot.facts.curves))
        if save.backend.is_host and is_constant(save.tensor):
            stored.fingerprint = fingerprint(save.tensor)
        return self._enter(save, stored)

    def why_exact(self, slot: Slot) -> str:
        """Why nothing of a slot is stored for now; "" where it is."""
        return "paused" if self._is_paused else "" if slot.facts.is_trusted else "guarded"

    def _enter(self, save: Save, stored: Stored) -> View:
        """From now on other saves of this storage find `stored`."""
        stored.note_reader(save.frame.path)
        stored.enter(self.context, save.key, save.tensor)
        stored.count_in(self.context)
        view = View(stored, save.layout, is_consistent=_is_run_again(save.frame))
        for observer in self._observers:
            if observer.is_on:
                observer.see_stored(view, save.tensor)
        return view

    def _recipe(self, save: Save) -> Recomputed | None:
        """A view of the whole of another tensor counts as that."""
        tensor, call = save.tensor, save.frame.call
        if call is not None and call.run is not None:
            return call.member(len(call.saves), tensor)
        owner = tensor if tensor._base is None else tensor._base
        node = owner.grad_fn
        if node is None:
            return self._lstm.recompute_workspace(tensor)
        is_whole = save.layout.is_dense and (owner is tensor or is_same_memory(tensor, owner))
        name = node.name()
        if not save.backend.is_host and is_attention(name):
            return self._running.recompute(owner, node, is_whole)
        if not is_whole:
            return None
        if name in attention.KINDS:
            return attention.recompute_attention(owner, node)
        if name == ops.LSTM:
            return self._lstm.recompute_output(owner, node)
        recipe = recipe_of(node)
        if recipe is None:
            return None
        return Recomputed(recipe, layout_of(owner.shape, owner.stride()), tensor.dtype, tensor.nbytes)

    def _on_device(self, tensor: Tensor) -> Backend:
        """The first device that a run uses is where its budget is kept, and what plans and pages are about."""
        backend = self.backends.on_device(tensor)
        self._has_device, self.gate.is_open = True, False  # attention's saves are followed there
        if self.arena is self.backends.host.arena:
            self.arena = self.policy.arena = self.spot.arena = self.guard.arena = backend.arena
            if self.is_elastic:
                self._undo.callback(self.relief.watch(backend.arena, self._rest.watch))
            self.ledger.tell_to(backend.arena.count_saved)
        return backend

    def _keep_or_fit(self, tensor: Tensor, frame: Frame, reason: str) -> Handle:
        """A statistic is kept exact; one of a module that is run again must fit the input that this decodes to."""
        call = frame.call
        if reason not in ("small", "statistic") or call is None or call.run is None or tensor.grad_fn is None:
            return self._keep(tensor, reason)
        stored = call.member(len(call.saves), tensor)
        stored.count_in(self.context)
        return View(stored, layout_of(tensor.shape, tensor.stride()), is_consistent=True)

    def _keep(self, tensor: Tensor, reason: str, *, is_planned: bool = False) -> Kept:
        num_bytes = 0 if reason == "parameter" else _bytes_of(tensor)
        self.ledger.keep(reason, num_bytes, is_planned=is_planned)
        return Kept(tensor, self.context, num_bytes)

    def _keep_of_compiled(self, tensor: Tensor) -> Kept:
        """Saved by a compiled graph that our hooks were not inlined into."""
        if self._inlining.is_complete and self.policy.num_steps != self._inlined_at:
            why = why_not() or "compiled autograd, or a graph that was compiled before, is not inlined into"
            self._warn("what a compiled graph saves is kept exact", f" ({why})")
        return self._keep(tensor, "compiled")

    # -- steps, modules, reads

    def _maybe_begin_plain_step(self) -> None:
        """Graphs left plain save without a word to us: their steps begin with a call, or a backward."""
        if self._inlining.has_silent_graphs and torch.is_grad_enabled():
            self.maybe_begin_step()

    def maybe_begin_step(self) -> None:
        if self.scope.is_new_step():
            self._begin_step()

    def _begin_step(self) -> None:
        now = time.perf_counter()
        if self._step_began:
            self.encoder.packer.step(now - self._step_began)
        self._step_began = now
        self._is_paused = self.arena.paused
        self._new_slots = self._is_pressed = self.relief.is_news = False
        self._seen_nodes.numbers.clear()
        try:
            self.policy.begin_step(self.relief.end_step(), was_whole=self._rest.was_whole)
            self._rest.was_whole = True
            if self._inlining.step(is_short=self.policy.is_short):
                self._inlined_at = self.policy.num_steps
                self._gate_pair()
            tight_budget = self.policy.tight_budget()
            self.context.decoded.has_room = not tight_budget
            self._slices.resize(tight_budget // SLICES if self.may_recompute else 0)
            self._reruns.is_on = self.may_recompute and self.policy.may_recompute
            if self.policy.expects_pressure:
                self._save_memory()
            self.encoder.is_sampling = self.policy.probe.is_on
            self.monitor.begin_step(self.policy.num_steps)
            self.guard.begin_step(self.policy.num_steps)
            self._through.begin_step()
            self.spot.begin_step(self.policy.probe.is_on)
        except Exception as error:
            self._fail("planning failed; the last plan stays", error)
        self.gate.is_open = self._hooks.is_wanted and not self.spot.is_on and not self._has_device

    def _save_memory(self) -> None:
        """Memory ran short in the middle of a step: the rest of it does without temporaries that it can spare."""
        self.relief.is_news = False
        self._is_pressed = True
        self._reruns.is_on = self.may_recompute
        self.context.decoded.has_room = False
        self._slices.resize(int(self.arena.stats()["budget_bytes"]) // SLICES)

    def _begin_backward(self, roots: object) -> None:
        """In the thread that calls it; a device's nodes then run, and unpack, in a thread of the device."""
        self._maybe_begin_plain_step()
        self.scope.note_backward()
        self._rest.begin_backward()
        if not self._rest.is_on:
            self._uses.begin_backward()
            for observer in self._observers:
                observer.begin_backward(roots)

    def _end_backward(self) -> None:
        self.ledger.settle()
        try:
            self._rest.end_backward()
            self.gate.is_open &= not self._rest.is_on
        except Exception as error:
            self._fail("the hooks could not be taken off or put back", error)

    def _may_rest(self) -> bool:
        is_watched = self.monitor.every > 0 or self.spot.is_on
        return self.is_elastic and not is_watched and hasattr(self.arena, "want_half") and self.policy.may_rest()

    def _wake(self) -> None:
        self._rest.wake()

    def _meet(self, node: Any) -> None:
        """A node whose type the gate does not know. Types that stand for many kinds of nodes it never does."""
        name = node.name()
        if type(node).__name__ == name and name not in ops.AMPLIFIERS and not is_attention(name):
            self.gate.known_nodes.add(type(node))
        self._uses.see_node(node)

    def _see_read(self, view: View, node: Any) -> None:
        self._uses.see(node, view)
        if node.name() == LAYER_NORM:
            bound_input(view, handle_of(node, "result1"), handle_of(node, "result2"))
        for observer in self._observers:
            if observer.is_on:
                observer.see_read(view, node)

    def _enter_root(self, module: torch.nn.Module) -> None:
        self._hooks.push()
        self.monitor.see_root(module)
        self._maybe_begin_plain_step()

    def _enter_module(self, module: torch.nn.Module, args: tuple[object, ...]) -> Call | None:
        try:
            return self._reruns.enter(module, args)
        except Exception as error:
            self._fail(f"a call of a {type(module).__name__} could not be observed", error)
            return None

    def _leave_module(self, frame: Frame, args: tuple[Any, ...], output: object) -> None:
        assert frame.module is not None
        try:
            try:
                for observer in self._observers:
                    if observer.is_on:
                        observer.leave_module(frame, frame.module, args, output)
            finally:
                if self.is_elastic and self._new_slots:
                    find_readers(output, self._seen_nodes.numbers)
        except (DafOutOfMemoryError, torch.OutOfMemoryError):
            self.ledger.num_failures += 1
        except Exception as error:
            self._fail(f"a call of {frame.path} could not be observed", error)

    # -- what happened

    def _fail(self, text: str, error: Exception) -> None:
        self.ledger.num_failures += 1
        self._warn(text, f" ({type(error).__name__}: {error})")

    def _warn(self, text: str, detail: str = "") -> None:
        """Says each kind of thing once."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"daf: {text}{detail}. Training goes on; said once, counted in stats().", stacklevel=4)

    def stats(self) -> dict[str, int | float]:
        """Counts so far, and of the last step: how many bytes of plain torch's saves were kept exact, recomputed,
        compressed and spilled, at its peak; relative gradient errors, expected and measured."""
        return {
            **self.ledger.counts(),
            **self.policy.figures(),
            "slots": len(self.table),
            "surprising_reads_total": self._uses.num_surprises,
            "fidelity_measured_total": self.spot.num_measured,
            "fidelity_failures_total": self.spot.num_failures,
            "guarded_total": self.guard.num_distrusted_total,
        }

    def slots(self) -> list[Slot]:
        return list(self.table)


def is_input_of_norm(frame: Frame, slot: Slot) -> bool:
    """Whether a layer norm or RMSNorm reads the slot, as an op or as a module that is run again."""
    if LAYER_NORM in slot.facts.ops or isinstance(frame.module, torch.nn.LayerNorm):
        return True
    return frame.inputs_of is not None and "RMSNorm" in type(frame.inputs_of).__name__


def _is_of_lstm(tensor: Tensor) -> bool:
    """The output of an LSTM layer, or what may be its workspace: run again, both are exact and take no bytes."""
    node = tensor.grad_fn
    return tensor.dtype is torch.uint8 if node is None else node.name() == ops.LSTM


def _is_run_again(frame: Frame) -> bool:
    return frame.call is not None and frame.call.run is not None


def _bytes_of(tensor: Tensor) -> int:
    """0 where a tensor does not say: a sparse one."""
    try:
        return tensor.nbytes
    except RuntimeError:
        return 0
