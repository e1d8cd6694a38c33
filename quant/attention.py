"""Fused attention, kept consistent.

Its backward works out exp(q k - lse) from the saved q, k and log-sum-exp. Were q and k coded and lse exact, the
exponent would no longer fit and gradients would explode. So only q, k, v (and the mask) are stored, and out and lse
are restored together by one more fused forward over what q, k, v decode to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from daf.quant.derive import Thunk, peek, source
from daf.quant.handles import Derived
from daf.quant.layout import layout_of

NODE = "ScaledDotProductFlashAttentionForCpuBackward0"


class FusedAttention:
    """One call of fused attention: how to run its forward again.

    Shapes: q [B, H, L, E], k [B, H, S, E], v [B, H, S, E], mask broadcastable to [B, H, L, S];
    out [B, H, L, E], lse [B, H, L].

    The two results hold this object, so it refers to them weakly: a cycle would keep q, k and v until the next
    collection of garbage, steps later.
    """

    def __init__(self, node: Any) -> None:
        self._inputs = [source(node, f"_saved_{name}") for name in ("query", "key", "value")]
        self._mask: Thunk | None = source(node, "_saved_attn_mask")
        self._is_causal = node._saved_is_causal
        self._scale = node._saved_scale
        self.out: Callable[[], Derived | None] = _nothing
        self.lse: Callable[[], Derived | None] = _nothing

    @property
    def is_complete(self) -> bool:
        return all(thunk is not None for thunk in self._inputs)

    def restore_out(self) -> Tensor:
        out, lse = self._forward()
        _hand_over(self.lse(), lse)
        return out

    def restore_lse(self) -> Tensor:
        out, lse = self._forward()
        _hand_over(self.out(), out)
        return lse

    def _forward(self) -> tuple[Tensor, Tensor]:
        query, key, value = (thunk() for thunk in self._inputs if thunk is not None)
        mask = self._mask() if self._mask is not None else None
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, self._is_causal, attn_mask=mask, scale=self._scale
        )
        return out, lse


def _nothing() -> None:
    return None


def _hand_over(derived: Derived | None, value: Tensor) -> None:
    if derived is not None and derived.num_uses > 0:
        derived.recent = value


def derive_attention(out: Tensor, node: Any) -> Derived | None:
    """The content of attention's output `out`; the log-sum-exp, saved just before it, is made to follow along."""
    call = FusedAttention(node)
    lse = peek.at(node, "_saved_logsumexp")
    if not call.is_complete or lse is None:
        return None
    shape = out.shape[:3]
    new_lse = Derived(call.restore_lse, layout_of(shape, _contiguous(shape)), torch.float32, 0)
    new_out = Derived(call.restore_out, layout_of(out.shape, out.stride()), out.dtype, out.nbytes)
    call.lse, call.out = weakref.ref(new_lse), weakref.ref(new_out)
    lse.supersede(new_lse)
    return new_out


def _contiguous(shape: torch.Size) -> tuple[int, ...]:
    _, heads, steps = shape
    return heads * steps, steps, 1
