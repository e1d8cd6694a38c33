"""Who reads a saved tensor in a compiled backward, and whether noise in it does harm there.

The same allow-list as for eager code, by aten ops instead of autograd's nodes, and with the same reasons. In a compiled
graph a reader may be a chain: a compiler saves x and works GELU's derivative out again from elementwise ops. So from
the saved tensor each way is followed until it meets a gradient:

    carries     noise goes on as it came: views, casts, sums, products, bounded functions
    reads       a product with the gradient, or an op with a name of its own: the way ends, and is benign
    anything else on the way (a logarithm, a root, a comparison, an index, an op that is not listed) makes it exact
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from daf.quant.ops import node_name

Node = Any  # torch.fx.Node

# Ops that hand on what they are given, whatever the argument: linear in it, or views of it.
CARRIES = frozenset({
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten.permute", "aten.transpose", "aten.t", "aten.expand",
    "aten.slice", "aten.select", "aten.unsqueeze", "aten.squeeze", "aten.clone", "aten._to_copy", "aten.alias",
    "aten.detach", "aten.cat", "aten.split", "aten.flip", "aten.constant_pad_nd", "aten.copy",
    "aten.split_with_sizes", "aten.unbind", "prims.convert_element_type", "prims.view_of", "aten.add", "aten.rsub",
    "aten.neg", "aten.mul", "aten.sum", "aten.mean", "aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm",
    "aten.lift_fresh_copy", "aten.as_strided", "aten.repeat", "aten.fma", "prims.broadcast_in_dim",
})  # fmt: skip
VIEWS = frozenset({
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten.permute", "aten.transpose", "aten.t", "aten.alias",
    "aten.detach", "aten.unsqueeze", "aten.squeeze", "aten.expand",
})  # fmt: skip
# Functions that are saved themselves, and whose backward takes powers of them, or is as steep as they are high.
STEEP = frozenset(f"aten.{name}" for name in (
    "exp", "exp2", "expm1", "sqrt", "rsqrt", "reciprocal", "pow", "prod", "cumprod", "sinh", "cosh", "tan",
    "_log_softmax", "log",
))  # fmt: skip
# Functions that are bounded together with their derivatives.
BOUNDED = frozenset({"aten.tanh", "aten.sigmoid", "aten.erf", "aten.sin", "aten.cos"})
# op -> argument that is a factor, or is under its own exact statistics -> eager's name for who reads it
NAMED: dict[str, dict[int, str]] = {
    "aten.mm": {0: node_name("Mm"), 1: node_name("Mm")},
    "aten.addmm": {1: node_name("Addmm"), 2: node_name("Addmm")},
    "aten.bmm": {0: node_name("Bmm"), 1: node_name("Bmm")},
    "aten.baddbmm": {1: node_name("Baddbmm"), 2: node_name("Baddbmm")},
    "aten.convolution_backward": {1: node_name("Convolution")},
    "aten.gelu_backward": {1: node_name("Gelu")},
    "aten.silu_backward": {1: node_name("Silu")},
    "aten.mish_backward": {1: node_name("Mish")},
    "aten.tanh_backward": {1: node_name("Tanh")},
    "aten.sigmoid_backward": {1: node_name("Sigmoid")},
    "aten._softmax_backward_data": {1: node_name("Softmax")},
    "aten.native_layer_norm_backward": {1: node_name("NativeLayerNorm")},
    "aten.native_group_norm_backward": {1: node_name("NativeGroupNorm")},
    "aten.native_batch_norm_backward": {1: node_name("NativeBatchNorm")},
    "aten.mul": {0: node_name("Mul"), 1: node_name("Mul")},
}
COMPARES = frozenset({"aten.le", "aten.lt", "aten.gt", "aten.ge", "aten.threshold_backward"})
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
ATTENTION_BACKWARD = f"{ATTENTION}_backward"
RELU = node_name("Relu")
PRODUCT = node_name("Mul")
# Functions that a compiler writes out: their products with the gradient are theirs.
_BOUNDED_NAMES = frozenset({node_name("Gelu"), node_name("Silu")})
_WRITTEN_OUT = _BOUNDED_NAMES | {node_name("NativeLayerNorm")}
EAGER_ATTENTION = node_name("ScaledDotProductFlashAttentionForCpu")


def name_of(node: Node) -> str:
    """aten.mul for aten.mul.Tensor; empty for what is no op."""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return "getitem"
    name = str(node.target)
    return name.rsplit(".", 1)[0] if name.count(".") == 2 else name


class NotBenignError(Exception):
    """A reader that noise would harm, by name."""


class Readers:
    """Looks at one backward graph. `attended` are the arguments of attention that may be noisy: output and log-sum-exp
    are recomputed from them."""

    def __init__(self, gradients: set[Node], attended: dict[Node, set[int]]) -> None:
        self._gradients = gradients
        self._attended = attended

    def ops(self, saved: Node, *, is_relu: bool) -> set[str]:
        """Names that eager code has for the readers of `saved`. NotBenignError where one of them must have it exact.

        is_relu: it is a ReLU's output, of which the codec keeps exactly where it is above zero.
        """
        found: set[str] = set()
        ways = [(saved, "")]
        seen = set(ways)
        while ways:
            node, through = ways.pop()
            for reader in node.users:
                name = self._name_of_reader(node, reader, is_relu=is_relu)
                if name:
                    found.add(through if through and name == PRODUCT else name)
                way = (reader, _function_of(reader) or through)
                if reader not in self._gradients and reader.op != "output" and name != RELU and way not in seen:
                    seen.add(way)
                    ways.append(way)
        if any(name_of(node) == "aten.pow" for node, _ in seen) and not found & _BOUNDED_NAMES:
            raise NotBenignError("aten.pow")
        return found - {PRODUCT} if found & _WRITTEN_OUT else found

    def _name_of_reader(self, node: Node, reader: Node, *, is_relu: bool) -> str:
        """The name that counts for importance; empty where noise is only carried on."""
        op = name_of(reader)
        places = [place for place, argument in enumerate(reader.args) if _holds(argument, node)]
        if reader.op == "output" or op == "getitem":
            return ""
        if op in COMPARES and is_relu:
            return RELU
        if op == ATTENTION_BACKWARD and set(places) <= self._attended.get(reader, set()):
            return EAGER_ATTENTION
        named = NAMED.get(op, {})
        if all(place in named for place in places) and (reader in self._gradients or op not in CARRIES):
            return named[places[0]]
        if op in CARRIES or op in BOUNDED or any(allows(reader, places) for allows in _SOMETIMES):
            return ""
        raise NotBenignError(op or reader.op)


def is_factor(made: Node) -> bool:
    """Whether the forward uses a tensor in no other product than with another: not its own square, nor a power."""
    ways, seen = [made], {made}
    while ways:
        node = ways.pop()
        for reader in node.users:
            op = name_of(reader)
            if op == "aten.pow" or (op == "aten.mul" and all(_holds(argument, node) for argument in reader.args[:2])):
                return False
            if op in VIEWS and reader not in seen:
                seen.add(reader)
                ways.append(reader)
    return True


def _function_of(node: Node) -> str:
    """What eager code would call the function that a compiler has written out here; empty if it says nothing."""
    op = name_of(node)
    if op == "aten.mul" and any(_is_statistic(argument) for argument in node.args):
        return node_name("NativeLayerNorm")
    return {"aten.erf": node_name("Gelu"), "aten.tanh": node_name("Gelu"), "aten.sigmoid": node_name("Silu")}.get(
        op, ""
    )


def is_statistic(value: torch.Tensor) -> bool:
    """One number a row, such as a norm's own: all of the row hangs on it."""
    return value.dim() > 1 and value.shape[-1] == 1


def _is_statistic(argument: Any) -> bool:
    value = argument.meta.get("val") if hasattr(argument, "meta") and argument.op == "placeholder" else None
    return value is not None and is_statistic(value)


def _holds(argument: Any, node: Node) -> bool:
    return argument is node or (isinstance(argument, list | tuple) and node in argument)


def _is_numerator(reader: Node, places: list[int]) -> bool:
    return name_of(reader) == "aten.div" and places == [0]


def _is_chosen(reader: Node, places: list[int]) -> bool:
    """A value of `where`, not its condition."""
    return name_of(reader) == "aten.where" and 0 not in places


def _is_centred(reader: Node, places: list[int]) -> bool:
    """Less a constant, or one number a row. The difference of two tensors may nearly cancel, and its noise does not."""
    if name_of(reader) != "aten.sub" or len(places) != 1:
        return False
    other = reader.args[1 - places[0]]
    value = other.meta.get("val") if hasattr(other, "meta") else None
    return isinstance(other, int | float) or (value is not None and (value.dim() == 0 or value.shape[-1] == 1))


def _is_small_power(reader: Node, places: list[int]) -> bool:
    """Of the polynomial in GELU's approximation; by itself, noise where it is small meets what may be huge there."""
    return name_of(reader) == "aten.pow" and places == [0] and reader.args[1] in (1, 2, 3)


def _is_bell(reader: Node, _places: list[int]) -> bool:
    """exp(-c x^2), of GELU's derivative: bounded, unlike other exponentials."""
    if name_of(reader) != "aten.exp":
        return False
    square, *rest = _arguments(reader.args[0], "aten.mul") or (None,)
    factors = _arguments(square, "aten.mul")
    is_square = len(factors) == 2 and factors[0] is factors[1]
    return is_square and len(rest) == 1 and isinstance(rest[0], int | float) and rest[0] < 0


def _arguments(node: Any, op: str) -> tuple[Any, ...]:
    return tuple(node.args) if hasattr(node, "args") and name_of(node) == op else ()


_SOMETIMES: tuple[Callable[[Node, list[int]], bool], ...] = (
    _is_numerator, _is_chosen, _is_centred, _is_small_power, _is_bell,
)  # fmt: skip
