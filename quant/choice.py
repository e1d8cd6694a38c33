"""Which codec, width and group shape a tensor gets, from its dtype and from the op that made it."""

from __future__ import annotations

import torch
from torch import Tensor

from daf.kernels import Spec
from daf.quant.slots import Slot

FIRST_WIDTH = 2  # of a slot that `auto` knows nothing of yet
RAW = Spec("raw", 0)
BOOL = Spec("bool", 1)
MASK = Spec("mask", 1)

LOGARITHM_WIDTH = 6  # at least: noise d in a logarithm is a factor of e^d, and a tree's widest cells hold the likeliest

# Ops whose backward solves with what they saved, or looks up by it: a little noise there is another answer.
_FRAGILE = frozenset(
    f"{name}Backward0"
    for name in (
        *("GridSampler2D", "GridSampler3D", "TriangularSolve", "LinalgSolveTriangular", "LinalgSolveEx"),
        *("Cholesky", "LinalgCholeskyEx", "CholeskySolve", "CholeskyInverse", "LinalgInvEx", "LinalgPinv", "LinalgDet"),
        *("LinalgSlogdet", "LinalgLu", "LinalgLuFactorEx", "LinalgLuSolve", "LuUnpack", "LinalgLstsq"),
        *("LinalgMatrixExp", "LinalgQr", "LinalgHouseholderProduct", "Ormqr", "LinalgSvd", "LinalgEigh", "LinalgEig"),
    )
)
_LOGARITHM = "LogSoftmaxBackward0"
_RELU_LIKE = frozenset({"ReluBackward0", "ThresholdBackward0", "HardtanhBackward0"})


def is_relu_like(tensor: Tensor) -> bool:
    return producer(tensor) in _RELU_LIKE


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
        self._logarithm_spec = Spec("minmax-sr" if self.is_stochastic else "minmax", max(self.width, LOGARITHM_WIDTH))

    def choose(self, tensor: Tensor, slot: Slot) -> Spec:
        dtype = tensor.dtype
        if dtype is torch.bool:
            return BOOL
        if self.bits == "lossless" or dtype is torch.float64 or not slot.is_finite or _is_fragile(tensor, slot):
            return RAW
        is_relu = is_relu_like(tensor)
        planned = slot.planned
        if planned is not None and (planned.codec == "support") == is_relu:
            return planned
        if producer(tensor) == _LOGARITHM:
            return self._logarithm_spec
        return self._relu_spec if is_relu else self._spec


def _is_fragile(tensor: Tensor, slot: Slot) -> bool:
    return producer(tensor) in _FRAGILE or not _FRAGILE.isdisjoint(slot.ops)
