"""The two ops that stand in compiled graphs.

    handle = daf::stash(x, slot)                                           in the forward, right after x is made
    x      = daf::unstash(handle, after, sizes, strides, dtype, slot)      in the backward, right before x is read

A third, daf::recomputed, stands for what is recomputed in the backward while a graph is being compiled
(graphs.py); none is left when it runs.

Codec, width and eviction stay behind the handle, so a plan changes without compiling anew. `after` is the gradient that
the first reader also takes: it is not read (but in sampled steps), and keeps a compiler from decoding earlier.

    handle   [ "dafstash" | slot, 8 bytes ]   uint8, on the CPU

A stash is found by the address of its handle, not by a number in it: so the op gives equal results for equal arguments.
The handle's memory is a Python object that holds the stash. It lives as long as the handle's storage, whoever has that:
a graph that never runs backward frees its stashes with its handles.
"""

from __future__ import annotations

import functools
import struct
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

HANDLE_BYTES = 16
_LAYOUT = struct.Struct("<8sq")
_MAGIC = b"dafstash"


class Content(Protocol):
    """What one handle stands for."""

    def restore(self, after: Tensor | None) -> Tensor:
        """A tensor of the reader's own, however often it is asked for."""


class Store(Protocol):
    def stash(self, tensor: Tensor, slot_number: int) -> Content: ...


class Exact:
    """A copy: a compiler may use the memory of the original again."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach().clone()

    def restore(self, _after: Tensor | None) -> Tensor:
        return self._tensor.clone()


class _Copies:
    """The store while no engine is installed: a compiled graph may outlive a session."""

    def stash(self, tensor: Tensor, _slot_number: int) -> Content:
        return Exact(tensor)


class _Memory(bytearray):
    """A handle's sixteen bytes, and the stash that they own."""

    content: Content


class Handles:
    """All handles alive by their address, and where new ones are stored."""

    def __init__(self) -> None:
        self._live: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()
        self.store: Store = _Copies()

    def close(self) -> None:
        self.store = _Copies()

    def __len__(self) -> int:
        return len(self._live)

    def stash(self, tensor: Tensor, slot: int) -> Tensor:
        memory = _Memory(_LAYOUT.pack(_MAGIC, slot))
        memory.content = self.store.stash(tensor, slot)
        handle = torch.frombuffer(memory, dtype=torch.uint8)
        self._live[handle.data_ptr()] = memory
        return handle

    def unstash(self, handle: Tensor, after: Tensor, *of: Any) -> Tensor:
        sizes, strides, dtype, _slot = of
        memory = self._live.get(handle.data_ptr()) or self._original(handle)
        value = memory.content.restore(None if after is handle else after)
        if value.dtype is dtype and value.shape == tuple(sizes) and value.stride() == tuple(strides):
            return value
        return torch.empty_strided(sizes, strides, dtype=dtype, device=value.device).copy_(value.view(tuple(sizes)))

    def _original(self, copy: Tensor) -> _Memory:
        """The handle that `copy` is a copy of: the only one of its slot, or it cannot be told."""
        content = bytes(copy.tolist())
        alike = [memory for memory in self._live.values() if bytes(memory) == content]
        if len(alike) != 1:
            raise RuntimeError(f"daf::unstash: {list(content)} is no handle, or a copy of one of {len(alike)}")
        return alike[0]


handles = Handles()


def _never(_sizes: Sequence[int], _strides: Sequence[int], _dtype: torch.dtype, slot: int) -> Tensor:
    raise RuntimeError(f"daf::recomputed of slot {slot} was to be replaced when its graph was compiled")


def _fake_recomputed(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, _slot: int) -> Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype)


def _fake_stash(_tensor: Tensor, _slot: int) -> Tensor:
    return torch.empty(HANDLE_BYTES, dtype=torch.uint8, device="cpu")


def _fake_unstash(handle: Tensor, _after: Tensor, *of: Any) -> Tensor:
    sizes, strides, dtype, _slot = of
    return torch.empty_strided(sizes, strides, dtype=dtype, device=handle.device)


@functools.cache
def define() -> Any:
    """Makes the ops known to torch, once for the process. Whoever holds the library keeps them."""
    library: Any = torch.library.Library("daf", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("stash(Tensor x, int slot) -> Tensor")
    library.define(
        "unstash(Tensor handle, Tensor after, SymInt[] sizes, SymInt[] strides, ScalarType dtype, int slot) -> Tensor"
    )
    library.define("recomputed(SymInt[] sizes, SymInt[] strides, ScalarType dtype, int slot) -> Tensor")
    library.impl("recomputed", _never, "CompositeExplicitAutograd")
    library.impl("stash", handles.stash, "CompositeExplicitAutograd")
    library.impl("unstash", handles.unstash, "CompositeExplicitAutograd")
    torch.library.register_fake("daf::recomputed", _fake_recomputed, lib=library)
    torch.library.register_fake("daf::stash", _fake_stash, lib=library)
    torch.library.register_fake("daf::unstash", _fake_unstash, lib=library)
    return library
