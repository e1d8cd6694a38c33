"""What the engine gives autograd in place of a saved tensor. `restore` may be called any number of times.

Kept                 the tensor itself, exact
View -> Stored       one save of a storage: shape and strides here, the content shared with other saves
           Compressed     ... as bit planes in the arena
           Recomputed   ... recomputed from other handles (rules.py, attention.py)
           Exact     ... as the tensor itself, until memory is short
           Held      ... as the tensor itself, after all
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from daf.quant._gate import KeptTensor
from daf.quant.encode.masks import fingerprint
from daf.quant.saved.layout import Layout, layout_of
from daf.quant.saved.ledger import Share

if TYPE_CHECKING:
    from daf.allocator import Stash
    from daf.quant.encode.packing import Ticket
    from daf.quant.encode.rows import Rows
    from daf.quant.saved.context import Context
    from daf.quant.saved.ledger import StorageKey
    from daf.quant.saved.slots import Plan, Slot


class Handle(Protocol):
    @property
    def layout(self) -> Layout: ...

    def restore(self) -> Tensor: ...

    def supersede(self, stored: Stored) -> None:
        """Give back `stored` from now on; let go of what is held."""


class Kept(KeptTensor):
    """A tensor that is kept exact. Detached, or the graph would hold itself alive.

    With hooks in place autograd no longer compares versions, so this does. Most are made in C (native/gate.c).
    """

    __slots__ = ()

    def __init__(self, tensor: Tensor, context: Context, num_bytes: int) -> None:
        # A leaf has no graph to leak, and keeping it saves a detach for every parameter.
        held = tensor if tensor.is_leaf else _detached(tensor)
        super().__init__(held, context, context.ledger.books, tensor._version, num_bytes)

    def restore(self) -> Tensor:
        if self.instead is not None:
            instead: View = self.instead
            return instead.restore()
        tensor: Tensor = self.tensor
        if tensor._version != self.version:
            raise RuntimeError(modified_in_place(tensor, self.version))
        return tensor

    @property
    def layout(self) -> Layout:
        return layout_of(self.tensor.shape, self.tensor.stride())

    def supersede(self, stored: Stored) -> None:
        self.instead = View(stored, self.layout)
        stored.count_in(self.context)
        if self.context.monitor.wants(self):
            self.context.monitor.keep(stored, self.tensor)
        self.tensor = self.tensor.new_empty(0)
        self.uncount()


def _detached(tensor: Tensor) -> Tensor:
    try:
        return tensor.detach()
    except RuntimeError:  # a gradient of `is_grads_batched` knows no views
        return tensor.data


class Awaited(Kept):
    """A tensor that is about to be recomputed from another (batchnorm_relu.py). If that does not come, its slot stops
    waiting."""

    __slots__ = ("slot",)

    def __init__(self, tensor: Tensor, context: Context, slot: Slot) -> None:
        super().__init__(tensor, context, tensor.nbytes)
        self.slot = slot

    def restore(self) -> Tensor:
        if self.instead is None:
            self.slot.facts.can_recompute = self.slot.plan.is_recomputed = False
        return super().restore()


class Stored:
    """The content of one storage, shared by every save of it.

    num_uses counts the saves that have not been asked for yet in the current backward. While some are left the
    decoded value is held for them; a second backward over the same graph finds none left and decodes each time.
    The weak storage reference pins the address of the storage's record, so a look-up by this address can never meet
    another tensor that came to lie in the same place.
    """

    __slots__ = (
        "__weakref__",
        "context",
        "decoded",
        "dtype",
        "num_uses",
        "share",
    )  # fmt: skip

    def __init__(self, dtype: torch.dtype, raw_bytes: int, stored_bytes: int) -> None:
        self.dtype = dtype
        self.share = Share(raw_bytes, stored_bytes)
        self.num_uses = 0
        self.decoded: Tensor | None = None
        self.context: Context | None = None

    @property
    def raw_bytes(self) -> int:
        return self.share.raw_bytes

    @property
    def stored_bytes(self) -> int:
        return self.share.stored_bytes

    @property
    def is_saved(self) -> bool:
        return self.share.is_saved

    def enter(self, context: Context, key: StorageKey, tensor: Tensor) -> None:
        """From now on saves of the same storage find this content."""
        self.share.key = key
        self.share.storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.context = context
        context.ledger.enter(self, key)

    def count_in(self, context: Context) -> None:
        """It was saved: its bytes count, once."""
        self.share.is_saved = True
        self.context = context
        context.ledger.add(self)

    def fetch(self, layout: Layout) -> Tensor:
        """The content, as a dense tensor of the layout's core shape."""
        self.num_uses -= 1
        value = self.decoded
        if value is None:
            value = self.decode(layout)
            if self.num_uses > 0 and self.context is not None:
                self.context.decoded.hold(self, value)
        elif self.num_uses <= 0:
            self.decoded = None
        if value.shape != layout.core_shape or value.stride() != layout.core_strides:
            value = value.as_strided(layout.core_shape, layout.core_strides)
        return value

    def decode(self, layout: Layout) -> Tensor:
        raise NotImplementedError

    @property
    def is_bit_exact(self) -> bool:
        """Whether floats come back with every bit: then what is computed from them must not differ either."""
        return False

    def is_content_of(self, _tensor: Tensor) -> bool:
        """Whether it is what lies in the memory of `tensor` now, of the same storage and version."""
        return True

    def learn(self, op: str) -> None:
        """The autograd node `op` asked for this content."""

    def note_reader(self, path: str) -> None:
        """The module at `path` saved this content."""

    def slots(self) -> list[Slot]:
        """The slots that its noise comes from."""
        return []


class Compressed(Stored):
    """Content held as planes in the arena, or on its way there.

    `bound`, if there is one, corrects in place what decoding gives (layernorm_bound.py). `fingerprint` is of tensors
    without history: nobody says when those are filled anew. `rows`: it was coded with rows of one size, and these give
    them theirs back.
    """

    __slots__ = ("bound", "fingerprint", "plan", "rows", "slot", "stash", "ticket")

    def __init__(
        self,
        stash: Stash,
        ticket: Ticket,
        plan: Plan,
        slot: Slot,
        *,
        dtype: torch.dtype,
        raw_bytes: int,
        rows: Rows | None = None,
    ) -> None:
        super().__init__(dtype, raw_bytes, plan.stored_bytes + (0 if rows is None else rows.num_bytes))
        self.rows = rows
        self.bound: Callable[[Tensor], None] | None = None
        self.fingerprint: object = None
        self.stash = stash
        self.ticket = ticket
        self.plan = plan
        self.slot = slot
        self.share.release = functools.partial(_release, stash, ticket)

    def decode(self, layout: Layout) -> Tensor:
        token = self.ticket.wait()
        plan, stash = self.plan, self.stash
        self.slot.seen.num_evicted = len(plan.coder.stream_bytes) - stash.pin()
        try:
            value = plan.backend.decode(plan.coder, layout, self.dtype, stash.planes, token)
        finally:
            stash.unpin()
        if self.rows is not None:
            self.rows.undo(value)
        if self.bound is not None:
            self.bound(value)
        return value

    @property
    def is_bit_exact(self) -> bool:
        return self.plan.spec.codec == "raw"

    def learn(self, op: str) -> None:
        self.slot.facts.ops.add(op)

    def note_reader(self, path: str) -> None:
        self.slot.facts.readers.add(path)

    def slots(self) -> list[Slot]:
        return [self.slot]

    def is_content_of(self, tensor: Tensor) -> bool:
        return self.fingerprint is None or self.fingerprint == fingerprint(tensor)


def _release(stash: Stash, ticket: Ticket) -> None:
    if ticket.abandon():
        stash.release()  # else the packing, still under way, lets go of it last


class Held(Stored):
    """Content that turned out to be needed exactly."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.dtype, tensor.nbytes, tensor.nbytes)
        self.tensor = tensor
        self.version = tensor._version

    def decode(self, _layout: Layout) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(modified_in_place(self.tensor, self.version))
        return self.tensor


class Exact(Stored):
    """Content kept exact, which can still be compressed while the graph lives (plan/relief.py).

    A reader takes hold of the tensor in one step and `compress` sets `instead` before it lets the tensor go, so a
    backward in another thread finds one or the other.

    is_relu        a ReLU made it: its zeros are a support
    is_consistent  attention's output is recomputed from it, so it may change
    num_saves      how often autograd saved it
    num_found      of these, how many a node was found for before any backward (plan/readers.py)
    """

    __slots__ = ("instead", "is_consistent", "is_relu", "num_found", "num_saves", "slot", "tensor", "version")

    def __init__(self, tensor: Tensor, slot: Slot, num_bytes: int, *, is_relu: bool) -> None:
        super().__init__(tensor.dtype, num_bytes, num_bytes)
        self.tensor: Tensor | None = tensor if tensor.is_leaf else _detached(tensor)
        self.share.is_kept = True
        self.version = tensor._version
        self.instead: Stored | None = None
        self.slot = slot
        self.is_relu = is_relu
        self.is_consistent = False
        self.num_saves = 1
        self.num_found = 0

    def fetch(self, layout: Layout) -> Tensor:
        tensor = self.tensor
        if tensor is None:
            assert self.instead is not None
            return self.instead.fetch(layout)
        if tensor._version != self.version:
            raise RuntimeError(modified_in_place(tensor, self.version))
        if tensor.shape == layout.shape and tensor.stride() == layout.strides:
            return tensor
        return tensor.as_strided(layout.shape, layout.strides, tensor.storage_offset())

    def is_content_of(self, tensor: Tensor) -> bool:
        return self.instead is None or self.instead.is_content_of(tensor)

    def compress(self, stored: Compressed) -> None:
        """`stored` takes the tensor's place, for every save of it."""
        stored.num_uses = self.num_uses
        stored.context = self.context
        self.instead = stored
        self.tensor = None
        if self.context is not None:
            self.context.ledger.watch(stored, stored.share)
            self.context.ledger.compress(self, stored.stored_bytes)

    def find(self, op: str) -> None:
        """A node that saved it was found in the graph."""
        self.num_found += 1
        self.slot.facts.ops.add(op)

    def learn(self, op: str) -> None:
        self.slot.facts.ops.add(op)
        self.slot.facts.is_read = True

    def note_reader(self, path: str) -> None:
        self.slot.facts.readers.add(path)

    def slots(self) -> list[Slot]:
        return [self.slot]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How content is worked out, and from which handles."""

    compute: Callable[[], Tensor]
    sources: tuple[Handle, ...]

    def __call__(self) -> Tensor:
        return self.compute()


class Recomputed(Stored):
    """Content that is a function of other handles, worked out when it is asked for. It holds no bytes.

    `layout` is that of the tensor it stands for: the function's own result may lie differently in memory.
    """

    __slots__ = ("compute", "layout", "read_as", "slot")

    def __init__(self, compute: Recipe, layout: Layout, dtype: torch.dtype, raw_bytes: int) -> None:
        super().__init__(dtype, raw_bytes, 0)
        self.compute = compute
        self.layout = layout
        self.read_as = ""  # the op that stands for all readers, where they are run again with it
        self.slot: Slot | None = None  # its own, where the planner counts its readers there

    def learn(self, op: str) -> None:
        for slot in self.slots() if self.slot is None else (*self.slots(), self.slot):
            slot.facts.ops.add(self.read_as or op)

    def note_reader(self, path: str) -> None:
        for slot in self.slots() if self.slot is None else (self.slot,):
            slot.facts.readers.add(path)

    def slots(self) -> list[Slot]:
        views = (handle for handle in self.compute.sources if isinstance(handle, View))
        return [slot for view in views for slot in view.stored.slots()]

    def decode(self, _layout: Layout) -> Tensor:
        with torch.no_grad():
            return self.fit(self.compute().detach())

    def fit(self, value: Tensor) -> Tensor:
        """`value` in the dtype and strides of the tensor that it stands for."""
        mine = self.layout
        if value.dtype is self.dtype and value.stride() == mine.strides:
            return value
        return torch.empty_strided(mine.shape, mine.strides, dtype=self.dtype, device=value.device).copy_(value)


class View:
    """One save of a storage: its shape and strides. `companion` is content to be found as long as this save lives.

    is_consistent   all that its reader saved is recomputed from one decoded input (module_rerun.py)
    """

    __slots__ = ("companion", "is_consistent", "layout", "stored")

    def __init__(self, stored: Stored, layout: Layout, *, is_consistent: bool = False) -> None:
        self.companion: Stored | None = None
        self.is_consistent = is_consistent
        stored.num_uses += 1
        self.stored = stored
        self.layout = layout

    def restore(self) -> Tensor:
        layout = self.layout
        context = self.stored.context
        if context is not None and context.monitor.hands_out_exact:
            exact = context.monitor.exact(self.stored, layout)
            if exact is not None:
                return exact
        out = self.stored.fetch(layout)
        if not layout.is_dense and self.stored.is_bit_exact:
            out = with_gaps(out, layout)
        return out.expand(layout.shape) if layout.is_expanded else out

    def supersede(self, stored: Stored) -> None:
        context = self.stored.context
        if context is not None:
            stored.count_in(context)
            context.monitor.move(self.stored, stored)
        stored.num_uses += 1
        self.stored = stored


def with_gaps(dense: Tensor, layout: Layout) -> Tensor:
    """The elements as far apart as they were saved: torch's kernels round otherwise where they cannot read in one
    stretch (softplus_backward). Never larger than what plain torch keeps alive, the tensor that was viewed."""
    strides = [stride or 1 for stride in layout.strides]
    return torch.empty_strided(layout.core_shape, strides, dtype=dense.dtype, device=dense.device).copy_(dense)


class _CompressedView(View):
    """A View whose content is Compressed, for the type checker."""

    stored: Compressed


HANDLES = (Kept, View)  # whatever the engine packs is one of these


def modified_in_place(tensor: Tensor, version: int) -> str:
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead."
    )


def is_compressed(handle: Handle) -> TypeGuard[_CompressedView]:
    return isinstance(handle, View) and isinstance(handle.stored, Compressed)


def slot_of(handle: Handle) -> Slot | None:
    """The slot that a handle's content belongs to, if it has one of its own."""
    if isinstance(handle, Awaited):
        return handle.slot
    if isinstance(handle, View) and isinstance(handle.stored, (Compressed, Exact)):
        return handle.stored.slot
    return None


def compressed_behind(handle: Handle | None) -> Compressed | None:
    """What a handle's content is decoded from, if it is."""
    stored = handle.stored if isinstance(handle, View) else None
    if isinstance(stored, Exact):
        stored = stored.instead
    return stored if isinstance(stored, Compressed) else None
