"""What the engine gives autograd in place of a saved tensor. `restore` may be called any number of times.

Kept                 the tensor itself, passed through
View -> Stored       one save of a storage: shape and strides here, the content shared with other saves
           Coded     ... as bit planes in the arena
           Derived   ... worked out again from other handles (derive.py, attention.py)
           Held      ... as the tensor itself, after all
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from daf.quant.layout import Layout, layout_of

if TYPE_CHECKING:
    from daf.allocator import Stash
    from daf.quant.ledger import Ledger, StorageKey
    from daf.quant.packing import Ticket
    from daf.quant.slots import Plan, Slot

_current_node = torch._C._current_autograd_node


class Handle(Protocol):
    @property
    def layout(self) -> Layout: ...

    def restore(self) -> Tensor: ...

    def supersede(self, stored: Stored) -> None:
        """Give back `stored` from now on; let go of what is held."""


class Kept:
    """A tensor that was passed through. Detached, or the graph would hold itself alive.

    With hooks in place autograd no longer compares versions, so this does.
    """

    __slots__ = ("instead", "ledger", "num_bytes", "tensor", "version")

    def __init__(self, tensor: Tensor, ledger: Ledger, num_bytes: int) -> None:
        self.instead: View | None = None
        # A leaf has no graph to leak, and keeping it saves a detach for every parameter.
        self.tensor = tensor if tensor.is_leaf else _detached(tensor)
        self.version = tensor._version
        self.ledger = ledger
        self.num_bytes = num_bytes

    def restore(self) -> Tensor:
        if self.instead is not None:
            return self.instead.restore()
        if self.tensor._version != self.version:
            raise RuntimeError(modified_in_place(self.tensor, self.version))
        return self.tensor

    @property
    def layout(self) -> Layout:
        return layout_of(self.tensor.shape, self.tensor.stride())

    def supersede(self, stored: Stored) -> None:
        self.instead = View(stored, self.layout)
        stored.count_in(self.ledger)
        if self.ledger.monitor.wants(self):
            self.ledger.monitor.keep(stored, self.tensor)
        self.tensor = self.tensor.new_empty(0)
        self.ledger.hold(-self.num_bytes)
        self.num_bytes = 0

    def __del__(self) -> None:
        self.ledger.hold(-self.num_bytes)


def _detached(tensor: Tensor) -> Tensor:
    try:
        return tensor.detach()
    except RuntimeError:  # a gradient of `is_grads_batched` knows no views
        return tensor.data


class Awaited(Kept):
    """A tensor whose handle is about to follow from another (rectified.py). If that does not come, its slot stops
    waiting."""

    __slots__ = ("slot",)

    def __init__(self, tensor: Tensor, ledger: Ledger, slot: Slot) -> None:
        super().__init__(tensor, ledger, tensor.nbytes)
        ledger.hold(tensor.nbytes)
        self.slot = slot

    def restore(self) -> Tensor:
        if self.instead is None:
            self.slot.can_follow = self.slot.follows = False
        return super().restore()


class Stored:
    """The content of one storage, shared by every save of it.

    num_uses counts the saves that have not been asked for yet in the current backward. While some are left the
    decoded value is held for them; a second backward over the same graph finds none left and decodes each time.
    The weak storage reference pins the address of the storage's record, so a look-up by this address can never meet
    another tensor that came to lie in the same place.
    """

    __slots__ = (
        "__weakref__", "dtype", "is_saved", "key", "ledger", "num_uses", "raw_bytes", "recent", "storage",
        "stored_bytes",
    )  # fmt: skip

    def __init__(self, dtype: torch.dtype, raw_bytes: int, stored_bytes: int) -> None:
        self.dtype = dtype
        self.raw_bytes = raw_bytes
        self.stored_bytes = stored_bytes
        self.num_uses = 0
        self.is_saved = False
        self.recent: Tensor | None = None
        self.ledger: Ledger | None = None
        self.key: StorageKey | None = None

    def enter(self, ledger: Ledger, key: StorageKey, storage: StorageWeakRef) -> None:
        """From now on saves of the same storage find this content."""
        self.key = key
        self.storage = storage
        self.ledger = ledger
        ledger.enter(self, key)

    def count_in(self, ledger: Ledger) -> None:
        """It was saved: its bytes count, once."""
        self.is_saved = True
        self.ledger = ledger
        ledger.add(self)

    def fetch(self, layout: Layout) -> Tensor:
        """The content, as a dense tensor of the layout's core shape."""
        self.num_uses -= 1
        value = self.recent
        if value is None:
            value = self.decode(layout)
            if self.num_uses > 0 and self.ledger is not None:
                self.ledger.recent.hold(self, value)
        elif self.num_uses <= 0:
            self.recent = None
        if value.shape != layout.core_shape or value.stride() != layout.core_strides:
            value = value.as_strided(layout.core_shape, layout.core_strides)
        return value

    def decode(self, layout: Layout) -> Tensor:
        raise NotImplementedError

    def learn(self, op: str) -> None:
        """The autograd node `op` asked for this content."""

    def note_reader(self, path: str) -> None:
        """The module at `path` saved this content."""

    def slots(self) -> list[Slot]:
        """The slots that its noise comes from."""
        return []

    def __del__(self) -> None:
        if self.ledger is not None:
            self.ledger.drop(self)


class Coded(Stored):
    """Content held as planes in the arena, or on its way there.

    `bound`, if there is one, mends in place what decoding gives: what else is known of the content (norms.py).
    """

    __slots__ = ("bound", "plan", "slot", "stash", "ticket")

    def __init__(
        self, stash: Stash, ticket: Ticket, plan: Plan, slot: Slot, *, dtype: torch.dtype, raw_bytes: int
    ) -> None:
        super().__init__(dtype, raw_bytes, plan.stored_bytes)
        self.bound: Callable[[Tensor], None] | None = None
        self.stash = stash
        self.ticket = ticket
        self.plan = plan
        self.slot = slot

    def decode(self, layout: Layout) -> Tensor:
        token = self.ticket.wait()
        plan, stash = self.plan, self.stash
        self.slot.num_evicted = len(plan.coder.stream_bytes) - stash.pin()
        try:
            value = plan.place.decode(plan.coder, layout, self.dtype, stash.planes, token)
        finally:
            stash.unpin()
        if self.bound is not None:
            self.bound(value)
        return value

    def learn(self, op: str) -> None:
        self.slot.ops.add(op)

    def note_reader(self, path: str) -> None:
        self.slot.readers.add(path)

    def slots(self) -> list[Slot]:
        return [self.slot]

    def __del__(self) -> None:
        if self.ticket.abandon():
            self.stash.release()  # else the packing, still under way, lets go of it last
        super().__del__()


class Held(Stored):
    """Content that turned out to be needed as it is."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.dtype, tensor.nbytes, tensor.nbytes)
        self.tensor = tensor
        self.version = tensor._version

    def decode(self, _layout: Layout) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(modified_in_place(self.tensor, self.version))
        return self.tensor


@dataclass(frozen=True, slots=True)
class Recipe:
    """How content is worked out, and from which handles."""

    compute: Callable[[], Tensor]
    sources: tuple[Handle, ...]

    def __call__(self) -> Tensor:
        return self.compute()


class Derived(Stored):
    """Content that is a function of other handles, worked out when it is asked for. It holds no bytes.

    `layout` is that of the tensor it stands for: the function's own result may lie differently in memory.
    """

    __slots__ = ("compute", "layout")

    def __init__(self, compute: Recipe, layout: Layout, dtype: torch.dtype, raw_bytes: int) -> None:
        super().__init__(dtype, raw_bytes, 0)
        self.compute = compute
        self.layout = layout

    def learn(self, op: str) -> None:
        for slot in self.slots():
            slot.ops.add(op)

    def note_reader(self, path: str) -> None:
        for slot in self.slots():
            slot.readers.add(path)

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
    """One save of a storage: its shape and strides. `companion` is content to be found as long as this save lives."""

    __slots__ = ("companion", "layout", "stored")

    def __init__(self, stored: Stored, layout: Layout) -> None:
        self.companion: Stored | None = None
        stored.num_uses += 1
        self.stored = stored
        self.layout = layout

    def restore(self) -> Tensor:
        layout = self.layout
        ledger = self.stored.ledger
        if ledger is not None and ledger.monitor.hands_out_exact:
            exact = ledger.monitor.exact(self.stored, layout)
            if exact is not None:
                return exact
        out = self.stored.fetch(layout)
        return out.expand(layout.shape) if layout.is_expanded else out

    def supersede(self, stored: Stored) -> None:
        if self.stored.ledger is not None:
            stored.count_in(self.stored.ledger)
            self.stored.ledger.monitor.move(self.stored, stored)
        stored.num_uses += 1
        self.stored = stored


class _CodedView(View):
    """A View whose content is Coded, for the type checker."""

    stored: Coded


def modified_in_place(tensor: Tensor, version: int) -> str:
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead."
    )


def is_coded(handle: Handle) -> TypeGuard[_CodedView]:
    return isinstance(handle, View) and isinstance(handle.stored, Coded)


def slot_of(handle: Handle) -> Slot | None:
    """The slot that a handle's content belongs to, if it has one of its own."""
    if isinstance(handle, Awaited):
        return handle.slot
    return handle.stored.slot if is_coded(handle) else None
