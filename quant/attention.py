"""Fused attention, kept consistent.

Its backward works out exp(q k - lse) from the saved q, k and log-sum-exp. Were q and k coded and lse exact, the
exponent would no longer fit and gradients would explode. So only q, k, v (and the mask) are stored, and out and lse
are restored together by one more fused forward over what q, k, v decode to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from daf.quant.derive import peek, source
from daf.quant.handles import Derived
from daf.quant.joint import Joint
from daf.quant.layout import layout_of

NODE = "ScaledDotProductFlashAttentionForCpuBackward0"


def derive_attention(out: Tensor, node: Any) -> Derived | None:
    """The content of attention's output `out`; the log-sum-exp, saved just before it, is made to follow along.

    Shapes: out [B, H, L, E], lse [B, H, L].
    """
    forward = _forward_again(node)
    lse = peek.at(node, "_saved_logsumexp")
    if forward is None or lse is None:
        return None
    joint = Joint(forward)
    lse.supersede(joint.member("lse", lse.layout, torch.float32))
    return joint.member("out", layout_of(out.shape, out.stride()), out.dtype)


def _forward_again(node: Any) -> Callable[[], dict[Hashable, Tensor]] | None:
    """Attention's forward over the restored q [B, H, L, E], k, v [B, H, S, E] and mask [B or 1, H or 1, L, S]."""
    query, key, value, mask = (source(node, f"_saved_{name}") for name in ("query", "key", "value", "attn_mask"))
    if query is None or key is None or value is None:
        return None
    is_causal, scale = node._saved_is_causal, node._saved_scale

    def forward() -> dict[Hashable, Tensor]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query(), key(), value(), 0.0, is_causal, attn_mask=mask and mask(), scale=scale
        )
        return {"out": out, "lse": lse}

    return forward
