"""Which codec, width and group shape a tensor gets, from its dtype and from the op that made it."""

from __future__ import annotations

import torch
from torch import Tensor

from daf.kernels import Spec
from daf.quant.ops import LOGARITHMS, LOGS, RELU_LIKE, SOLVERS
from daf.quant.saved.slots import Slot
from daf.quant.torch_internals import setting

FIRST_WIDTH = 2  # of a slot that `auto` knows nothing of yet
LOSSY = frozenset({torch.float32, torch.bfloat16, torch.float16})
RAW = Spec("raw", 0)
BOOL = Spec("bool", 1)
MASK = Spec("mask", 1)
EXACT = frozenset({"raw", "int", "bool", "mask"})

LOGARITHM_WIDTH = 6  # at least, of log-probabilities by another codec: noise d in a logarithm is a factor of e^d
LOGPROB = Spec("logprob", 4)  # errs by a twentieth of the gradient; its width is not planned
# What these make is exact: solutions go on into solvers, and a logarithm is a factor of what it is of, as in p log p.
NEVER = SOLVERS | LOGS
UNPLANNED = EXACT | {LOGPROB.codec}


def is_relu_like(tensor: Tensor, slot: Slot) -> bool:
    return slot.facts.is_relu or producer(tensor) in RELU_LIKE


def producer(tensor: Tensor) -> str:
    """Name of the node that made the tensor; for an op's own saved output that is the op itself."""
    node = tensor.grad_fn
    return "" if node is None else node.name()


ROUNDINGS = ("nearest", "stochastic")


class Chooser:
    """Turns the user's wish (`bits`) into a Spec per tensor that is not of integers: these need what they need.

    Rounding to the nearest errs least, and is biased: decoded values shrink towards their group's mean. Stochastic
    rounding errs more, and is unbiased wherever a gradient is linear in what was saved (weights' gradients, products);
    ReLU outputs keep their exact mask and the biased values.
    """

    def __init__(self, bits: int | str, rounding: str = "nearest") -> None:
        if rounding not in ROUNDINGS:
            raise ValueError(f"rounding is {rounding!r}; it is one of {', '.join(ROUNDINGS)}")
        self.bits = bits
        self.is_planned = bits == "auto"
        self.is_stochastic = rounding == "stochastic"
        self.width = bits if isinstance(bits, int) else FIRST_WIDTH
        codec = "minmax-sr" if self.is_stochastic else "meansplit" if self.width <= 4 else "minmax"
        self._spec = Spec(codec, self.width)
        self._relu_spec = Spec("support", min(4, self.width - 1))

    def choose(self, tensor: Tensor, slot: Slot) -> Spec:
        dtype = tensor.dtype
        if dtype is torch.bool:
            return BOOL
        if self.bits == "lossless" or dtype is torch.float64 or not slot.facts.is_finite:
            return RAW
        if producer(tensor) in NEVER or not slot.facts.may_compress:
            return RAW
        if producer(tensor) in LOGARITHMS:
            return LOGPROB if _has_rows_of_classes(tensor) else RAW
        is_relu = is_relu_like(tensor, slot)
        planned = slot.plan.planned
        if planned is not None and planned != MASK and (planned.codec == "support") == is_relu:
            return planned
        return self._relu_spec if is_relu else self._spec


def _has_rows_of_classes(tensor: Tensor) -> bool:
    """Whether what a log-softmax made has its classes side by side in memory."""
    last = tensor.dim() - 1
    dim = setting(tensor.grad_fn, "dim", 0)
    return tensor.is_contiguous() and tensor.shape[-1] > 1 and (dim == last or dim % (1 << 64) == (1 << 64) - 1)
