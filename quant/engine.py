"""The engine: autograd's saved tensors go into the arena as bit planes, and come back when they are asked for.

    with Engine(arena, bits=2):
        loss = model(x); loss.backward()

`pack` runs at every save and `unpack` at every use, so both are short and straight. Whatever goes wrong inside them
costs compression, never the run: the tensor is then passed through as it is, and counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from daf.errors import DafOutOfMemoryError
from daf.kernels import coder
from daf.quant import attention
from daf.quant.choice import BOOL, Chooser, producer
from daf.quant.derive import derive, peek
from daf.quant.handles import Coded, Derived, Handle, Kept, TwoValued, View
from daf.quant.layout import Layout, layout_of
from daf.quant.ledger import Ledger
from daf.quant.masks import is_constant, is_finite, second_value
from daf.quant.scope import Scope
from daf.quant.slots import Plan, Slot, SlotTable
from daf.quant.weights import is_from_parameters, is_weight_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daf.allocator import Arena, Stash

_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_current_node = torch._C._current_autograd_node

MIN_BYTES = 16 * 1024  # below this, headers and tail pages eat what coding saves
WORTH_IT = 0.75  # coded bytes must stay under this share of the raw ones
EXACT = frozenset({"raw", "int", "bool"})
FINITE_EVERY = 64  # saves of a slot between two looks for infinities
OFTEN_INFINITE = frozenset({"LogSoftmaxBackward0", "MaskedFillBackward0", "WhereBackward0", "LogBackward0"})

_DTYPES = {
    torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip

_NOTHING = torch.empty(0)
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """Holds what one run needs: arena, slots, ledger, and the codec choice."""

    def __init__(self, arena: Arena, bits: int | str = "auto", floor: int = 1, *, min_bytes: int = MIN_BYTES) -> None:
        self.arena = arena
        self.chooser = Chooser(bits)
        self.floor = floor
        self.min_bytes = min_bytes
        self.ledger = Ledger()
        self.table = SlotTable()
        self.scope = Scope()
        self.is_active = False
        self._is_off = bits == "off"
        self._hooked_threads = threading.local()
        self._hooks = (self.pack, self.unpack)
        self._was_warned = False
        self._undo = contextlib.ExitStack()

    # -- on and off

    def install(self) -> Engine:
        """Switches the engine on: in this thread now, in others at their next module call."""
        if self.is_active:
            return self
        self.is_active = True
        _engines.add(self)
        _watch_forks()
        self.scope.install(on_thread=self._hook_thread)
        self._undo.callback(self.scope.remove)
        self._undo.enter_context(_out_of_torch_func(self))
        self._hook_thread()
        return self

    def remove(self) -> None:
        """Switches it off. Graphs that hold handles can still run their backward."""
        if not self.is_active:
            return
        self.is_active = False
        _engines.discard(self)
        self._undo.close()
        self._unhook_thread()

    def __enter__(self) -> Engine:
        return self.install()

    def __exit__(self, *_exc: object) -> None:
        self.remove()

    def _hook_thread(self) -> None:
        if not getattr(self._hooked_threads, "is_hooked", False):
            self._hooked_threads.is_hooked = True
            _push_hooks(*self._hooks)

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
        if self._is_off or not self.is_active:
            return Kept(tensor, self.ledger, 0)
        try:
            return self._pack(tensor)
        except DafOutOfMemoryError:
            self._warn("the budget has no room left for saved activations, even at their floors")
            return self._keep(tensor, "no_room")
        except Exception as error:
            self.ledger.num_failures += 1
            self._warn(f"a saved tensor could not be encoded ({type(error).__name__}: {error})")
            return self._keep(tensor, "failure")

    def unpack(self, handle: Handle) -> Tensor:
        if peek.is_on:
            peek.handle = handle
            return _NOTHING
        self.scope.note_unpack()
        if type(handle) is View:
            node = _current_node()
            if node is not None:
                handle.stored.learn(node.name())
        return handle.restore()

    # -- packing

    def _pack(self, tensor: Tensor) -> Handle:
        if type(tensor) is not Tensor:
            return self._keep(tensor, "parameter" if isinstance(tensor, Parameter) else "subclass")
        if tensor.nbytes < self.min_bytes:
            return self._keep(tensor, "small")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.dtype not in _DTYPES:
            return self._keep(tensor, "unsupported")
        layout = layout_of(tensor.shape, tensor.stride())
        if layout.numel * tensor.element_size() < self.min_bytes:
            return self._keep(tensor, "small")
        frame = self.scope.frame()
        if is_from_parameters(tensor) or is_weight_copy(tensor, frame.module):
            return self._keep(tensor, "parameter")
        if tensor.is_leaf and tensor.requires_grad:
            return self._keep(tensor, "leaf")
        frame.order += 1
        storage = tensor.untyped_storage()
        shape_key = layout.is_dense or (layout.shape, layout.strides)
        key = (storage._cdata, tensor.data_ptr(), layout.numel, tensor._version, tensor.dtype, shape_key)
        stored = self.ledger.find(key)
        if stored is not None:
            self.ledger.num_shared += 1
            return View(stored, layout)
        stored = self._derive(tensor, layout)
        if stored is None:
            slot = self.table.at((frame.path, frame.order, tensor.dtype, len(layout.shape)))
            stored = self._encode(tensor, layout, slot)
        if stored is None:
            return self._keep(tensor, "not_worth_it")
        stored.enter(self.ledger, key, StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return View(stored, layout)

    def _derive(self, tensor: Tensor, layout: Layout) -> Derived | None:
        """What the tensor follows from, if all of that is stored. A view of the whole of another counts as that."""
        base = tensor._base
        owner = tensor if base is None else base
        node = owner.grad_fn
        if node is None or not layout.is_dense or (base is not None and not _is_same_memory(tensor, owner)):
            return None
        if node.name() == attention.NODE:
            return attention.derive_attention(owner, node)
        compute = derive(node)
        if compute is None:
            return None
        return Derived(compute, layout_of(owner.shape, owner.stride()), tensor.dtype, tensor.nbytes)

    def _encode(self, tensor: Tensor, layout: Layout, slot: Slot) -> Coded | None:
        source = tensor.detach()
        if layout.is_expanded:
            source = source.as_strided(layout.core_shape, layout.strides)
        if not layout.is_dense:
            # A slice is gathered first: coding it alone lets go of the whole that it was cut from.
            compact = torch.empty_strided(layout.core_shape, layout.core_strides, dtype=tensor.dtype)
            source = compact.copy_(source)
        if tensor.dtype.is_floating_point:
            if slot.is_mask is not False and is_constant(tensor):
                value = second_value(source)
                slot.is_mask = value is not None
                if value is not None:
                    return self._encode_mask(source, value, layout, slot)
            self._look_for_infinities(tensor, slot)
        slot.use(self.chooser.choose(tensor, source, slot))
        plan = self._plan(slot, tensor.dtype, layout)
        return None if plan is None else Coded(self._write(source, plan, slot), plan, slot, tensor.dtype, source.nbytes)

    def _encode_mask(self, source: Tensor, value: float, layout: Layout, slot: Slot) -> Coded | None:
        slot.use(BOOL)
        plan = self._plan(slot, torch.bool, layout)
        if plan is None:
            return None
        coded = TwoValued(self._write(source != 0, plan, slot), plan, slot, source.dtype, source.nbytes)
        coded.value = value
        return coded

    def _look_for_infinities(self, tensor: Tensor, slot: Slot) -> None:
        is_due = slot.num_saves % FINITE_EVERY == 0 or producer(tensor) in OFTEN_INFINITE or is_constant(tensor)
        if slot.is_finite and is_due:
            slot.is_finite = is_finite(tensor)

    def _write(self, source: Tensor, plan: Plan, slot: Slot) -> Stash:
        stash = self.arena.reserve(plan.stash_spec, slot.id, source.nbytes)
        try:
            plan.coder.encode(source.data_ptr(), stash.planes, slot.num_saves)
        except BaseException:
            stash.unpin()
            stash.release()
            raise
        stash.unpin()
        slot.num_saves += 1
        return stash

    def _plan(self, slot: Slot, dtype: torch.dtype, layout: Layout) -> Plan | None:
        size = (layout.numel, layout.cols)
        if size not in slot.plans:
            slot.plans[size] = self._make_plan(slot, dtype, layout)
        return slot.plans[size]

    def _make_plan(self, slot: Slot, dtype: torch.dtype, layout: Layout) -> Plan | None:
        spec = slot.spec
        assert spec is not None
        coded = coder(spec, _DTYPES[dtype], layout.numel, layout.cols)
        page_bytes = self.arena.page_bytes
        stored_bytes = sum(-(-num_bytes // page_bytes) * page_bytes for num_bytes in coded.stream_bytes)
        if spec.codec != "raw" and stored_bytes > WORTH_IT * layout.numel * dtype.itemsize and dtype is not torch.bool:
            return None
        importance = [layout.numel * 4.0**-stream for stream in range(len(coded.stream_bytes))]
        floor = len(coded.stream_bytes) if spec.codec in EXACT else 1 + min(self.floor, spec.bits)
        stash_spec = self.arena.stash_spec(coded.stream_bytes, importance, floor)
        return Plan(spec, coded, stash_spec, stored_bytes)

    # -- passing through

    def _keep(self, tensor: Tensor, reason: str) -> Kept:
        num_bytes = 0 if reason == "parameter" else tensor.nbytes
        self.ledger.keep(reason, num_bytes)
        return Kept(tensor, self.ledger, num_bytes)

    def _warn(self, text: str) -> None:
        if not self._was_warned:
            self._was_warned = True
            warnings.warn(f"daf: {text}; passed through as it is. Counted in stats(); said once.", stacklevel=4)

    # -- what happened

    def stats(self) -> dict[str, int]:
        return {**self.ledger.counts(), "slots": len(self.table)}

    def slots(self) -> list[Slot]:
        return list(self.table)


def _is_same_memory(view: Tensor, base: Tensor) -> bool:
    return view.data_ptr() == base.data_ptr() and view.numel() == base.numel() and view.dtype is base.dtype


@contextlib.contextmanager
def _out_of_torch_func(engine: Engine) -> Iterator[None]:
    """torch.func's transforms refuse to run while any hooks are pushed: ours step aside for the time of a transform."""
    graph = torch.autograd.graph
    original = graph.disable_saved_tensors_hooks

    @contextlib.contextmanager
    def disable(error_message: str) -> Iterator[None]:
        was_ours = engine._unhook_thread()
        try:
            with original(error_message):
                yield
        finally:
            if was_ours and engine.is_active:
                engine._hook_thread()

    graph.disable_saved_tensors_hooks = disable
    try:
        yield
    finally:
        graph.disable_saved_tensors_hooks = original


def _leave_child_alone() -> None:
    """A forked child (a DataLoader's worker) has the parent's hooks but not its arena: it passes everything through."""
    for engine in list(_engines):
        engine.is_active = False


_is_fork_watched = False


def _watch_forks() -> None:
    global _is_fork_watched
    if not _is_fork_watched:
        _is_fork_watched = True
        os.register_at_fork(after_in_child=_leave_child_alone)
