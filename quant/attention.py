"""Fused attention, kept consistent.

Its backward works out exp(q k - lse) from the saved q, k and log-sum-exp. Were q and k coded and lse exact, the
exponent would no longer fit and gradients would explode. So only q, k, v (and the mask) are stored, and out and lse
are restored together by one more fused forward over what q, k, v decode to.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from daf.quant.derive import peek, source
from daf.quant.handles import Derived, Recipe, is_coded
from daf.quant.joint import Joint
from daf.quant.layout import layout_of

NODE = "ScaledDotProductFlashAttentionForCpuBackward0"


def derive_attention(out: Tensor, node: Any) -> Derived | None:
    """The content of attention's output `out`; the log-sum-exp, saved just before it, is made to follow along.

    Shapes: out [B, H, L, E], lse [B, H, L].
    """
    joint = _forward_again(node)
    lse = peek.at(node, "_saved_logsumexp")
    if joint is None or lse is None:
        return None
    lse.supersede(joint.member("lse", lse.layout, torch.float32))
    return joint.member("out", layout_of(out.shape, out.stride()), out.dtype)


def _forward_again(node: Any) -> Joint | None:
    """Attention's forward over the restored q [B, H, L, E], k, v [B, H, S, E] and mask [B or 1, H or 1, L, S]."""
    query, key, value, mask = (source(node, f"_saved_{name}") for name in ("query", "key", "value", "attn_mask"))
    if query is None or key is None or value is None:
        return None
    _pair(query, key, value)
    is_causal, scale = node._saved_is_causal, node._saved_scale

    def forward() -> dict[Hashable, Tensor]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query(), key(), value(), 0.0, is_causal, attn_mask=mask and mask(), scale=scale
        )
        return {"out": out, "lse": lse}

    # Whoever reads the output reads a mean of v; noise in q and k hardly reaches it.
    return Joint(forward, value.sources)


def _pair(query: Recipe, key: Recipe, value: Recipe) -> None:
    """Noise in any of the three gets into the gradients of query and key."""
    slots = [handle.stored.slot for recipe in (query, key) for handle in recipe.sources if is_coded(handle)]
    partners = tuple(slot.id for slot in slots)
    for recipe in (query, key, value):
        for handle in recipe.sources:
            if is_coded(handle):
                handle.stored.slot.partners = partners
