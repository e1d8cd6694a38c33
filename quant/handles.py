"""What the engine gives autograd in place of a saved tensor. `restore` may be called any number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from daf.quant.layout import Layout

if TYPE_CHECKING:
    from daf.allocator import Stash
    from daf.quant.ledger import Ledger, StorageKey
    from daf.quant.slots import Plan, Slot

_current_node = torch._C._current_autograd_node


class Handle(Protocol):
    def restore(self) -> Tensor: ...


class Kept:
    """A tensor that was passed through. Detached, or the graph would hold itself alive.

    With hooks in place autograd no longer compares versions, so this does.
    """

    __slots__ = ("ledger", "num_bytes", "tensor", "version")

    def __init__(self, tensor: Tensor, ledger: Ledger, num_bytes: int) -> None:
        # A leaf has no graph to leak, and keeping it saves a detach for every parameter.
        self.tensor = tensor if tensor.is_leaf else tensor.detach()
        self.version = tensor._version
        self.ledger = ledger
        self.num_bytes = num_bytes

    def restore(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(_modified_in_place(self.tensor, self.version))
        return self.tensor

    def __del__(self) -> None:
        self.ledger.kept_bytes -= self.num_bytes


class Coded:
    """One encoded storage, shared by every save of it.

    The weak storage reference pins the address of the storage's record, so a look-up by this address can never meet
    another tensor that came to lie in the same place.
    """

    __slots__ = ("__weakref__", "dtype", "key", "ledger", "plan", "raw_bytes", "slot", "stash", "storage")

    def __init__(self, *, stash: Stash, plan: Plan, slot: Slot, tensor: Tensor, raw_bytes: int) -> None:
        self.stash = stash
        self.plan = plan
        self.slot = slot
        self.dtype = tensor.dtype
        self.raw_bytes = raw_bytes
        self.ledger: Ledger | None = None

    def enter(self, ledger: Ledger, key: StorageKey, storage: StorageWeakRef) -> None:
        self.ledger = ledger
        self.key = key
        self.storage = storage
        ledger.add(self, key)

    def decode(self, layout: Layout) -> Tensor:
        out = torch.empty_strided(layout.core_shape, layout.core_strides, dtype=self.dtype)
        stash = self.stash
        stash.pin()
        try:
            self.plan.coder.decode(out.data_ptr(), stash.planes)
        finally:
            stash.unpin()
        return out

    def __del__(self) -> None:
        self.stash.release()
        if self.ledger is not None:
            self.ledger.drop(self, self.key)


class View:
    """One save of an encoded storage: its shape and strides."""

    __slots__ = ("coded", "layout")

    def __init__(self, coded: Coded, layout: Layout) -> None:
        self.coded = coded
        self.layout = layout

    def restore(self) -> Tensor:
        coded, layout = self.coded, self.layout
        node = _current_node()
        if node is not None:
            coded.slot.ops.add(node.name())
        out = coded.decode(layout)
        return out.expand(layout.shape) if layout.is_expanded else out


def _modified_in_place(tensor: Tensor, version: int) -> str:
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead."
    )
