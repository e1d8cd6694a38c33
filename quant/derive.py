"""Content that need not be stored because it follows from what is stored already.

A linear layer saves its input y; the op that made y often has saved what y was made from. Then y is worked out again
in backward from the decoded source, by one pass that costs about what decoding does, and takes no bytes:

    GELU, SiLU           y = f(x)            x is saved by the op itself
    layer norm           y = (x - mean) * rstd * weight + bias
    dropout over softmax y = p * noise       p saved by softmax, noise by the product
    cast (autocast)      y = x.to(dtype)     of any of these

Sources are held as handles, not through the autograd node: a node lets go of its saved tensors when it has run, a
handle lives as long as whoever holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from daf.kernels.pointwise import normalize
from daf.quant.handles import Handle, Recipe, View

MAX_DEPTH = 3


class Peek(threading.local):
    """Reads the handle behind a node's saved tensor: the engine's unpack, seeing `is_on`, leaves it here."""

    is_on = False
    handle: Handle | None = None

    def at(self, node: Any, name: str) -> Handle | None:
        """The handle, or None where the node has no such tensor or it was not saved through the engine."""
        self.is_on, self.handle = True, None
        try:
            getattr(node, name, None)
            return self.handle
        except RuntimeError:  # already released
            return None
        finally:
            self.is_on, self.handle = False, None


peek = Peek()


def source(node: Any, name: str) -> Recipe | None:
    """A saved tensor of `node`, to be restored later. Counts as one more use of what is stored."""
    handle = peek.at(node, name)
    if handle is None:
        return None
    if isinstance(handle, View):
        handle.stored.num_uses += 1
    return Recipe(handle.restore, (handle,))


def derive(node: Any, depth: int = MAX_DEPTH) -> Recipe | None:
    """How to work out the output of `node`, if that needs nothing but what is stored."""
    rule = RULES.get(node.name()) if node is not None and depth > 0 else None
    return rule(node, depth) if rule is not None else None


def _gelu(node: Any, _depth: int) -> Recipe | None:
    x = source(node, "_saved_self")
    approximate = node._saved_approximate
    return x and Recipe(lambda: F.gelu(x(), approximate=approximate), x.sources)


def _silu(node: Any, _depth: int) -> Recipe | None:
    x = source(node, "_saved_self")
    return x and Recipe(lambda: F.silu(x()), x.sources)


def _layer_norm(node: Any, _depth: int) -> Recipe | None:
    x, mean, rstd = (source(node, name) for name in ("_saved_input", "_saved_result1", "_saved_result2"))
    weight, bias = source(node, "_saved_weight"), source(node, "_saved_bias")
    if x is None or mean is None or rstd is None:
        return None

    def compute() -> Tensor:
        return normalized(x(), mean(), rstd(), None if weight is None else weight(), None if bias is None else bias())

    return Recipe(compute, x.sources)


def normalized(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean) * rstd * weight + bias: in one pass where all are dense floats, else by torch."""
    tensors = [tensor for tensor in (x, mean, rstd, weight, bias) if tensor is not None]
    if x.numel() and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors):
        out, rows = torch.empty_like(x), mean.numel()
        normalize(
            x.data_ptr(),
            out.data_ptr(),
            mean=mean.data_ptr(),
            rstd=rstd.data_ptr(),
            weight=None if weight is None else weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            rows=rows,
            cols=x.numel() // rows,
        )
        return out
    out = (x - mean).mul_(rstd)
    if weight is None:
        return out if bias is None else out.add_(bias)
    return out.mul_(weight) if bias is None else torch.addcmul(bias, out, weight, out=out)


def _saved_result(node: Any, _depth: int) -> Recipe | None:
    return source(node, "_saved_result")


def _times_constant(node: Any, depth: int) -> Recipe | None:
    (left, _), (right, _) = node.next_functions
    if left is None or right is not None:
        return None
    x = derive(left, depth - 1)
    factor = x and source(node, "_saved_other")
    return x and factor and Recipe(lambda: x() * factor(), x.sources)


def _cast(node: Any, depth: int) -> Recipe | None:
    return derive(node.next_functions[0][0], depth - 1)  # whoever asked casts the result to its own dtype


RULES: dict[str, Callable[[Any, int], Recipe | None]] = {
    "GeluBackward0": _gelu,
    "SiluBackward0": _silu,
    "NativeLayerNormBackward0": _layer_norm,
    "MulBackward0": _times_constant,
    "ToCopyBackward0": _cast,
    "SoftmaxBackward0": _saved_result,
}
