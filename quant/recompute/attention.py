"""Fused attention, kept consistent.

Its backward works out exp(q k - lse) from the saved q, k and log-sum-exp. Were q and k coded and lse exact, the
exponent would no longer fit and gradients would explode. So only q, k, v (and the mask) are stored, and out and lse
are restored together by one more forward over what q, k, v decode to: in C where that is the faster (again_on_cpu),
else by the op itself.

On a device there are many such ops, and not all can be run again: with dropout, or from packages that nobody here
knows. Those of KINDS are tried at their first save, over the true q, k and v: what comes out must be what came out.
Any other op with attention in its name has all that it saves kept exact (Running).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from daf.kernels import isa
from daf.kernels.recompute.attention import MAX_HEAD_WIDTH, Heads, attend
from daf.quant.encode.backends import NotHereError
from daf.quant.observers import Observer
from daf.quant.ops import EFFICIENT, FLASH, FLASH_CPU, is_attention
from daf.quant.recompute.rules import handle_of, source
from daf.quant.recompute.shared_run import SharedRun
from daf.quant.saved.handles import Exact, Handle, Held, Kept, Recipe, Recomputed, View, is_compressed, slot_of
from daf.quant.saved.layout import layout_of
from daf.quant.torch_internals import next_number, setting

if TYPE_CHECKING:
    from daf.quant.saved.scope import Frame

Forward = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One fused op. `forward(q, k, v, mask, is_causal, scale)` gives out and lse; `mask`, `lse`: names in the node.

    `again`: the same but for rounding, and faster.
    """

    forward: Forward
    mask: str
    lse: str
    again: Forward | None = None


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return op(q, k, v, 0.0, how[0], attn_mask=mask, scale=how[1])  # type: ignore[no-any-return]


def again_on_cpu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
    """As the op, in C for what that takes. Shapes: q [B, H, L, E], k, v [B, H, S, E]; out as q, lse [B, H, L]."""
    is_causal, scale = how
    if mask is not None and mask.dtype == torch.float32:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    if not _is_for_c(q, k, v, mask, scale):
        return _on_cpu(q, k, v, mask, *how)
    batch, heads, length, width = q.shape
    out, lse = torch.empty_like(q), q.new_empty(batch, length, heads)
    attend(
        _heads(q),
        _heads(k),
        _heads(v),
        None if mask is None else _heads(mask),
        sizes=(batch, heads, length, k.shape[2], width),
        scale=1 / math.sqrt(width) if scale is None else scale,
        is_causal=is_causal,
        out=_heads(out),
        lse=lse.data_ptr(),
    )
    return out, lse.transpose(1, 2)


def _is_for_c(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> bool:
    tensors = (q, k, v) if mask is None else (q, k, v, mask)
    return (
        all(x.dtype == torch.float32 and x.is_cpu and x.stride(-1) == 1 and x.numel() > 0 for x in tensors)
        and k.shape == v.shape
        and q.shape[:2] == k.shape[:2]
        and q.shape[3] == k.shape[3] <= MAX_HEAD_WIDTH
        and (scale is None or scale > 0)
        and isa() != "scalar"
    )


def _heads(tensor: Tensor) -> Heads:
    batch, head, row, _ = tensor.stride()
    return Heads(tensor.data_ptr(), (batch, head, row))


def _flash(q: Tensor, k: Tensor, v: Tensor, _mask: None, *how: Any) -> tuple[Tensor, Tensor]:
    op = torch.ops.aten._scaled_dot_product_flash_attention
    return op(q, k, v, 0.0, how[0], scale=how[1])[:2]  # type: ignore[no-any-return]


def _efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
    op = torch.ops.aten._scaled_dot_product_efficient_attention
    return op(q, k, v, mask, True, 0.0, how[0], scale=how[1])[:2]  # type: ignore[no-any-return]


KINDS = {
    FLASH_CPU: Kind(_on_cpu, "attn_mask", "logsumexp", again_on_cpu),
    FLASH: Kind(_flash, "", "logsumexp"),
    EFFICIENT: Kind(_efficient, "attn_bias", "log_sumexp"),
}


def recompute_attention(out: Tensor, node: Any) -> Recomputed | None:
    """The content of attention's output `out`; the log-sum-exp, saved just before it, is made to follow along.

    Shapes: out [B, H, L, E], lse [B, H, L].
    """
    kind = KINDS[node.name()]
    joint = _forward_again(node, kind)
    lse = handle_of(node, kind.lse)
    if joint is None or lse is None:
        return None
    lse.supersede(joint.member("lse", lse.layout, torch.float32))
    for name in _INPUTS:
        handle = handle_of(node, name)
        if isinstance(handle, View) and isinstance(handle.stored, Exact):
            handle.stored.is_consistent = True
    return joint.member("out", layout_of(out.shape, out.stride()), out.dtype)


def is_exact(node: Any) -> bool:
    """Whether all that the node of a fused attention has saved so far is kept exact, and so must its output be."""
    kind = KINDS[node.name()]
    handles = (handle_of(node, name) for name in (*_INPUTS, kind.mask, kind.lse) if name)
    return all(_is_kept(handle) for handle in handles if handle is not None)


def _is_kept(handle: Handle) -> bool:
    if isinstance(handle, View):
        return isinstance(handle.stored, Exact) and handle.stored.instead is None
    return isinstance(handle, Kept) and handle.instead is None


def sources_of(node: Any) -> tuple[int, ...]:
    """The slots that the output's noise would come from, were it recomputed."""
    handle = handle_of(node, _INPUTS[2])
    return tuple(slot.id for slot in handle.stored.slots()) if isinstance(handle, View) else ()


def _forward_again(node: Any, kind: Kind) -> SharedRun | None:
    """Attention's forward over the restored q [B, H, L, E], k, v [B, H, S, E] and mask [B or 1, H or 1, L, S]."""
    query, key, value, mask = (source(node, name) for name in (*_INPUTS, kind.mask))
    if query is None or key is None or value is None:
        return None
    _pair(query, key, value)
    how = (setting(node, "is_causal"), setting(node, "scale"))
    # What is exact comes out as it did, to the last bit: the faster forward rounds otherwise.
    is_exact = not any(_is_noisy(handle) for recipe in (query, key, value) for handle in recipe.sources)
    again = kind.forward if is_exact or kind.again is None else kind.again

    def forward() -> dict[Hashable, Tensor]:
        out, lse = again(query(), key(), value(), mask and mask(), *how)
        return {"out": out, "lse": lse}

    # Whoever reads the output reads a mean of v; noise in q and k hardly reaches it.
    return SharedRun(forward, value.sources)


def _is_noisy(handle: Handle) -> bool:
    return is_compressed(handle) and not handle.stored.is_bit_exact


def _pair(query: Recipe, key: Recipe, value: Recipe) -> None:
    """Noise in any of the three gets into the gradients of query and key."""
    slots = [slot_of(handle) for recipe in (query, key) for handle in recipe.sources]
    partners = tuple(slot.id for slot in slots if slot is not None)
    for recipe in (query, key, value):
        for handle in recipe.sources:
            if (slot := slot_of(handle)) is not None:
                slot.facts.partners = partners


_INPUTS = ("query", "key", "value")


Op = tuple[str, torch.dtype]


class Running(threading.local, Observer):
    """On a device: the true contents of what the op that this thread records has saved so far.

    They are held until the next op saves something, or a backward begins, and only where a slot's reader is not known
    yet, or is attention. All threads share what is known: `exact`, ops that want all of their saves exact, and
    `trusted`, those that came out the same when they were run again.
    """

    def __init__(self, exact: set[str], trusted: set[Op]) -> None:
        self.is_on = False
        self._exact = exact
        self._trusted = trusted
        self._number = -1
        self._exact_number = -1
        self._saves: list[tuple[View, Tensor]] = []

    def see_save(self, _frame: Frame, handle: Handle, tensor: Tensor) -> None:
        self._follow()
        if type(handle) is View:
            ops = [op for slot in handle.stored.slots() for op in slot.facts.ops]
            if not ops or any(map(is_attention, ops)):
                self._saves.append((handle, tensor.detach()))

    def check(self, ops: set[str]) -> None:
        """Raise NotHereError where a tensor is of an op whose saves stay exact, or will be read by one."""
        self._follow()
        if self._number == self._exact_number or not self._exact.isdisjoint(ops):
            raise NotHereError("attention")

    def begin_backward(self, _roots: object) -> None:
        self._saves.clear()

    def recompute(self, out: Tensor, node: Any, is_whole: bool) -> Recomputed:
        """As recompute_attention, where that was tried; else NotHereError, and every save of the op is exact.

        is_whole: what was saved is `out`, all of it, densely.
        """
        name, key = node.name(), (node.name(), out.dtype)
        if is_whole and name not in self._exact and (key in self._trusted or self._comes_out_the_same(out, node)):
            self._trusted.add(key)
            derived = recompute_attention(out, node)
            if derived is not None:
                return derived
        self._exact.add(name)
        self._exact_number = self._number
        for handle, tensor in self._saves:
            handle.stored.learn(name)
            handle.supersede(Held(tensor))
        self._saves.clear()
        raise NotHereError("attention")

    def _follow(self) -> None:
        """Saves of one op carry the number of its node."""
        number = next_number() - 1
        if number != self._number:
            self._number = number
            self._saves.clear()

    def _comes_out_the_same(self, out: Tensor, node: Any) -> bool:
        kind = KINDS.get(node.name())
        if kind is None:
            return False
        try:
            if setting(node, "dropout_p"):
                return False
            inputs = [self._true(node, name) for name in (*_INPUTS, kind.mask)]
            again = kind.forward(*inputs, setting(node, "is_causal"), setting(node, "scale"))
            wanted = (out.detach(), self._true(node, kind.lse))
            return all(torch.equal(a, b) for a, b in zip(again, wanted, strict=True) if b is not None)
        except Exception:  # an op of this name that takes or gives something else, or of which not all was seen
            return False

    def _true(self, node: Any, name: str) -> Tensor | None:
        handle = handle_of(node, name) if name else None
        if handle is None:
            return None
        return handle.tensor if isinstance(handle, Kept) else next(true for seen, true in self._saves if seen is handle)
