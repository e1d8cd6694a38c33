"""The engine: autograd's saved tensors go into the arena as bit planes, and come back when they are asked for.

    with Engine(arena, bits=2):
        loss = model(x); loss.backward()

`pack` runs at every save and `unpack` at every use, so both are short and straight. Whatever goes wrong inside them
costs compression, never the run: the tensor is then passed through as it is, and counted.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
import warnings
import weakref
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from daf.errors import DafOutOfMemoryError
from daf.quant import attention, rectified
from daf.quant.choice import Chooser, producer
from daf.quant.derive import derive, peek
from daf.quant.encoder import DTYPES, EXACT, Encoder
from daf.quant.fidelity import Monitor
from daf.quant.handles import Awaited, Coded, Derived, Handle, Kept, Stored, View
from daf.quant.importance import LAYER_NORM
from daf.quant.layout import Layout, is_in_memory, layout_of
from daf.quant.ledger import Ledger, StorageKey, storage_key
from daf.quant.norms import bound_input
from daf.quant.packing_choice import make_packer
from daf.quant.places import NotHereError, Place, Places
from daf.quant.policy import Policy, Wish
from daf.quant.replay import OUTPUT, Call, Trust, is_candidate
from daf.quant.scope import Frame, Scope
from daf.quant.slices import Slices
from daf.quant.slots import Slot, SlotTable
from daf.quant.spotcheck import SpotCheck
from daf.quant.unfilled import passed_by
from daf.quant.weights import is_from_parameters, is_of_users_leaf, is_statistic, is_weight_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daf.allocator import Arena

_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_why_hooks_are_refused = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
_current_node = torch._C._current_autograd_node
_disable_hooks = torch.autograd.graph.disable_saved_tensors_hooks
_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]

DEFAULT_WISH = Wish()
MIN_BYTES = 16 * 1024  # below this, headers and tail pages eat what coding saves
SLICES = 128  # of the budget: the most that one slice of a convolution's input takes, where memory is short

_NOTHING = torch.empty(0)
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """Holds what one run needs: arena, slots, ledger, and the codec choice."""

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
    ) -> None:
        self.arena = arena
        self.places = Places(arena)
        self.encoder = Encoder(Chooser(bits, rounding), floor, make_packer(packing))
        self._packing = packing
        self._step_began = 0.0
        self.min_bytes = min_bytes
        self.ledger = Ledger(arena.count_saved)
        self.table = SlotTable()
        self.scope = Scope()
        self.policy = Policy(arena, self.table, self.ledger, wish=wish if bits == "auto" else None)
        self.policy.probe.on_failure = self._fail
        self.spot = SpotCheck(arena, self.ledger.monitor, self.policy.publish)
        self.is_active = False
        self._is_off = bits == "off"
        self.may_derive = bits != "lossless"
        self._trust = Trust()
        self._running = attention.Running(set(), set())
        self._slices = Slices()
        self._hooked_threads = threading.local()
        self._hooks = (self.pack, self.unpack)
        self._was_warned = False
        self._undo = contextlib.ExitStack()

    @property
    def monitor(self) -> Monitor:
        return self.ledger.monitor

    # -- on and off

    def install(self) -> Engine:
        """Switches the engine on: in this thread now, in others at their next module call. With bits="off" torch saves
        as ever: nothing is hooked."""
        if self.is_active:
            return self
        self.is_active = True
        if self._is_off:
            return self
        _engines.add(self)
        _watch_process()
        self.scope.install(on_root=self._enter_root, on_enter=self._enter_module, on_leave=self._leave_module)
        self._undo.callback(self.scope.remove)
        self._undo.enter_context(self.monitor.watch_backward(self._begin_backward))
        self._undo.enter_context(passed_by())
        self._hook_thread()
        return self

    def remove(self) -> None:
        """Switches it off. Graphs that hold handles can still run their backward.

        Hooks are a thread's own: another thread's are taken off at its next save or torch.func transform.
        """
        if not self.is_active:
            return
        self.is_active = False
        _engines.discard(self)
        self._undo.close()
        self._unhook_thread()
        self._close_packer()

    def _close_packer(self) -> None:
        """What is still on its way is packed before anyone closes the arena."""
        packer, self.encoder.packer = self.encoder.packer, make_packer(self._packing)
        try:
            packer.close()
        except Exception as error:
            self._fail("a saved tensor could not be packed", error)

    def __enter__(self) -> Engine:
        return self.install()

    def __exit__(self, *_exc: object) -> None:
        self.remove()

    def _hook_thread(self) -> None:
        """Not inside a transform of torch.func, which refuses all hooks: the next call outside does it."""
        if not getattr(self._hooked_threads, "is_hooked", False) and _why_hooks_are_refused() is None:
            _push_hooks(*self._hooks)
            self._hooked_threads.is_hooked = True

    def _unhook_thread(self) -> bool:
        """Takes our hooks off this thread if they are innermost; any other order is someone else's to undo."""
        top = _top_hooks(True)
        if top is None or top[0] is not self._hooks[0]:
            return False
        _pop_hooks()
        self._hooked_threads.is_hooked = False
        return True

    # -- the two hooks

    def pack(self, tensor: Tensor) -> Handle:
        self.ledger.num_packs += 1
        if not self.is_active:
            return self._pass_by(tensor)
        if self.scope.is_new_step():
            self._begin_step()
        frame = self.scope.frame()
        call = frame.call
        try:
            if call is not None:
                call.num_saves += 1
            handle = self._pack(tensor)
            if self._running.is_on:
                self._running.see(handle, tensor)
            if call is not None:
                call.saves.append((tensor.detach(), handle))
            if self.spot.is_on:
                self.spot.see(frame, handle, tensor)
            return handle
        except NotHereError as error:
            if error.text:
                self._warn(error.text)
            return self._keep(tensor, error.reason)
        except DafOutOfMemoryError:
            self._warn("the budget has no room left for saved activations, even at their floors")
            return self._keep(tensor, "no_room")
        except Exception as error:
            self._fail("a saved tensor could not be encoded", error)
            return self._keep(tensor, "failure")

    def _pass_by(self, tensor: Tensor) -> Kept:
        self._unhook_thread()
        return Kept(tensor, self.ledger, 0)

    def unpack(self, handle: Handle) -> Tensor:
        if peek.is_on:
            peek.handle = handle
            return _NOTHING
        self.scope.note_backward()
        if type(handle) is View:
            try:
                node = _current_node()
                if node is not None:
                    self._learn_reader(handle, node)
            except Exception as error:
                self._fail("what reads a saved tensor could not be told", error)
        return self.spot.restore(handle) if self.spot.is_running else handle.restore()

    def _learn_reader(self, view: View, node: torch.autograd.graph.Node) -> None:
        op = node.name()
        view.stored.learn(op)
        if op == LAYER_NORM:
            bound_input(view, peek.at(node, "_saved_result1"), peek.at(node, "_saved_result2"))
        if self.policy.probe.is_on:
            self.policy.probe.see_read(node, view.stored.slots())

    def _begin_backward(self, roots: object) -> None:
        """In the thread that calls it; a device's nodes then run, and unpack, in a thread of the device."""
        self.scope.note_backward()
        self._running.forget()
        self.spot.begin_backward(roots)

    def _begin_step(self) -> None:
        now = time.perf_counter()
        if self._step_began:
            self.encoder.packer.step(now - self._step_began)
        self._step_began = now
        try:
            self.policy.begin_step()
            tight_budget = self.policy.tight_budget()
            self.ledger.recent.has_room = not tight_budget
            self._slices.resize(tight_budget // SLICES if self.may_derive else 0)
            self.encoder.is_sampling = self.policy.probe.is_on
            self.monitor.begin_step(self.policy.num_steps)
            self.spot.begin_step(self.policy.probe.is_on)
        except Exception as error:
            self._fail("planning failed", error)

    # -- packing

    def _pack(self, tensor: Tensor) -> Handle:
        if type(tensor) is not Tensor:
            return self._keep(tensor, "parameter" if isinstance(tensor, Parameter) else "subclass")
        if not is_in_memory(tensor):
            return self._keep(tensor, "unsupported")
        if tensor.nbytes < self.min_bytes and (tensor.dim() < 3 or not attention.is_fused(producer(tensor))):
            return self._keep(tensor, "small")  # attention's output, however small: what it came from may be large
        if tensor.dtype not in DTYPES:
            return self._keep(tensor, "unsupported")
        if _is_compiled(sys._getframe(2)):
            return self._keep(tensor, "compiled")
        layout = layout_of(tensor.shape, tensor.stride())
        if layout.is_expanded and layout.numel * tensor.element_size() < self.min_bytes:
            return self._keep(tensor, "small")
        frame = self.scope.frame()
        if is_from_parameters(tensor) or is_weight_copy(tensor, frame.module):
            return self._keep(tensor, "parameter")
        if is_of_users_leaf(tensor):
            return self._keep(tensor, "leaf")
        if is_statistic(tensor):
            return self._keep(tensor, "statistic")
        frame.order += 1
        place = self.places.host if tensor.is_cpu else self._on_device(tensor)
        self._running.is_on = not place.is_host
        key = storage_key(tensor, layout)
        stored = self.ledger.find(key)
        if stored is not None:
            self.ledger.num_shared += 1
            if not stored.is_saved:
                stored.count_in(self.ledger)
            stored.note_reader(frame.path)
            return View(stored, layout)
        stored = self._derive(tensor, layout, frame, place)
        if stored is None:
            slot = self.table.at((frame.path, frame.order, tensor.dtype, len(layout.shape)))
            if not place.is_host:
                self._running.check(slot.ops)
            may_wait = self.ledger.recent.has_room and not self.encoder.is_sampling
            if slot.follows and slot.can_follow and may_wait:
                return Awaited(tensor, self.ledger, slot)
            stored = self.encoder.encode(tensor, layout, slot, place)
            if slot.spec is not None and slot.spec.codec in EXACT:
                self.ledger.note_exact(stored)
            elif self.policy.probe.is_on:
                self.policy.probe.see_slot(slot.id, tensor)
        if stored is None:
            return self._keep(tensor, "not_worth_it", is_planned=bool(slot.curves))
        stored.note_reader(frame.path)
        self._enter(stored, tensor, key)
        stored.count_in(self.ledger)
        if self.monitor.is_on:
            self.monitor.keep(stored, tensor)
        view = View(stored, layout)
        if self.may_derive and producer(tensor) == rectified.RELU:
            rectified.follow(view, tensor.grad_fn, self.encoder.may_follow)
        return view

    def _on_device(self, tensor: Tensor) -> Place:
        """The first device that a run uses is where its budget is kept, and what plans and pages are about."""
        place = self.places.on_device(tensor)
        if self.arena is self.places.host.arena:
            self.arena = self.policy.arena = self.spot.arena = place.arena
            self.ledger.tell_to(place.arena.count_saved)
        return place

    def _enter(self, stored: Stored, tensor: Tensor, key: StorageKey) -> None:
        stored.enter(self.ledger, key, StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]

    def _derive(self, tensor: Tensor, layout: Layout, frame: Frame, place: Place) -> Derived | None:
        """What the tensor follows from, if all of that is stored. A view of the whole of another counts as that."""
        if not self.may_derive:
            return None
        if frame.call is not None and frame.call.joint is not None:
            return frame.call.member(frame.call.num_saves - 1, tensor)
        base = tensor._base
        owner = tensor if base is None else base
        node = owner.grad_fn
        if node is None:
            return None
        is_whole = layout.is_dense and (base is None or _is_same_memory(tensor, owner))
        name = node.name()
        if not place.is_host and attention.is_fused(name):
            return self._running.derive(owner, node, is_whole)
        if not is_whole:
            return None
        if name in attention.KINDS:
            return attention.derive_attention(owner, node)
        compute = derive(node)
        if compute is None:
            return None
        return Derived(compute, layout_of(owner.shape, owner.stride()), tensor.dtype, tensor.nbytes)

    # -- modules that are run again (replay.py)

    def _enter_root(self, module: torch.nn.Module) -> None:
        self._hook_thread()
        self.monitor.see_root(module)

    def _enter_module(self, module: torch.nn.Module, args: tuple[object, ...]) -> Call | None:
        try:
            return self._enter_call(module, args)
        except Exception as error:
            self._fail(f"a call of a {type(module).__name__} could not be followed", error)
            return None

    def _enter_call(self, module: torch.nn.Module, args: tuple[object, ...]) -> Call | None:
        if not self.may_derive or not is_candidate(module) or self._trust.of(module) is False:
            return None
        if len(args) != 1 or type(args[0]) is not Tensor or not torch.is_grad_enabled() or not args[0].requires_grad:
            return None
        if not (args[0].is_cpu or args[0].is_cuda) or not is_in_memory(args[0]):
            return None
        call = Call(module, args[0])
        if self._trust.of(module):
            call.start(self.pack(call.source))
        return call

    def _leave_module(self, frame: Frame, args: tuple[object, ...], output: object) -> None:
        try:
            if self.policy.probe.is_on and frame.module is not None:
                self.policy.probe.see_layer(frame.path, frame.module, args, output)
            if frame.call is not None:
                self._leave_call(frame.call, output)
            self.spot.leave(frame, output)
        except Exception as error:
            self._fail(f"a call of {frame.path} could not be followed", error)

    def _leave_call(self, call: Call, output: object) -> None:
        if type(output) is not Tensor or not output.requires_grad:
            return
        if call.joint is None and not self._check(call, output):
            return
        layout = layout_of(output.shape, output.stride())
        holder = next(
            (handle for _, handle in call.saves if type(handle) is View and type(handle.stored) is Derived), None
        )
        key = storage_key(output, layout)
        if holder is not None and layout.is_dense and self.ledger.find(key) is None:
            derived = call.member(OUTPUT, output)
            self._enter(derived, output, key)
            holder.companion = derived

    def _check(self, call: Call, output: Tensor) -> bool:
        """Whether to trust the module from now on: it pays, and it comes out the same."""
        numbers = [n for n, (tensor, handle) in enumerate(call.saves) if self._is_intermediate(call, tensor, handle)]
        is_trusted = bool(numbers) and call.comes_out_the_same(output)
        self._trust.set(call.module, is_trusted)
        if is_trusted:
            call.start(self.pack(call.source))
            for number in numbers:
                tensor, handle = call.saves[number]
                handle.supersede(call.member(number, tensor))
        return is_trusted

    @staticmethod
    def _is_intermediate(call: Call, tensor: Tensor, handle: Handle) -> bool:
        return type(handle) is View and type(handle.stored) is Coded and not _is_same_memory(tensor, call.source)

    # -- passing through

    def _keep(self, tensor: Tensor, reason: str, *, is_planned: bool = False) -> Kept:
        num_bytes = 0 if reason == "parameter" else _bytes_of(tensor)
        self.ledger.keep(reason, num_bytes, is_planned=is_planned)
        return Kept(tensor, self.ledger, num_bytes)

    def _fail(self, text: str, error: Exception) -> None:
        self.ledger.num_failures += 1
        self._warn(f"{text} ({type(error).__name__}: {error})")

    def _warn(self, text: str) -> None:
        if not self._was_warned:
            self._was_warned = True
            warnings.warn(f"daf: {text}; passed through as it is. Counted in stats(); said once.", stacklevel=4)

    # -- what happened

    def stats(self) -> dict[str, int]:
        return {
            **self.ledger.counts(),
            "slots": len(self.table),
            "fidelity_measured_total": self.spot.num_measured,
            "fidelity_failures_total": self.spot.num_failures,
        }

    def slots(self) -> list[Slot]:
        return list(self.table)


def _is_compiled(caller: FrameType) -> bool:
    """Whether a compiled graph saves: `caller` is where the hook was called from. Its tensors have no history, so what
    they are for, and what must stay consistent with what (attention's log-sum-exp), cannot be told."""
    return caller.f_code is _APPLY and getattr(caller.f_locals.get("cls"), "__name__", "") == "CompiledFunction"


def _bytes_of(tensor: Tensor) -> int:
    """0 where a tensor does not say: a sparse one."""
    try:
        return tensor.nbytes
    except RuntimeError:
        return 0


def _is_same_memory(view: Tensor, base: Tensor) -> bool:
    return view.data_ptr() == base.data_ptr() and view.numel() == base.numel() and view.dtype is base.dtype


def _leave_child_alone() -> None:
    """A forked child (a DataLoader's worker) has the parent's hooks but not its arena: it passes everything through."""
    for engine in list(_engines):
        engine.is_active = False


@contextlib.contextmanager
def _step_aside(error_message: str) -> Iterator[None]:
    """torch.func's transforms refuse to run while any hooks are pushed: ours are away for the time of a transform."""
    top = _top_hooks(True)
    engine = getattr(top[0], "__self__", None) if top is not None else None
    ours = engine if isinstance(engine, Engine) and engine._unhook_thread() else None
    try:
        with _disable_hooks(error_message):
            yield
    finally:
        if ours is not None and ours.is_active:
            ours._hook_thread()


@functools.cache
def _watch_process() -> None:
    """What every engine needs of the process, put in place by the first and left there: a thread may keep the hooks of
    an engine that another thread has removed."""
    os.register_at_fork(after_in_child=_leave_child_alone)
    torch.autograd.graph.disable_saved_tensors_hooks = _step_aside
