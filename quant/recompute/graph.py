"""The way back through autograd's graph, from a node's output to what is stored: one step a node.

A `Step` is a function and the steps that give its arguments. Nodes met twice have one step, and a run keeps what a step
gave until it is over, so a product that two ways share is made once. What a node itself has saved ends the way: its
handle is a source. Where a node saved nothing (the product of a frozen weight, a sum, a view) the way goes on through
its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from daf.quant.ops import ACCUMULATE, ADD, FLASH_CPU, node_name
from daf.quant.recompute.rules import handle_of, recipe_of
from daf.quant.saved.handles import Handle, Kept, Recipe, View
from daf.quant.torch_internals import output_of_node, saved_number, setting

if TYPE_CHECKING:
    from daf.quant.saved.context import Context

LOOKED_AT = 32  # elements of a weight
MAX_NODES = 48  # on one way
MASKED_DIMS = 4
MAX_PRODUCTS = 3  # of matrices
_WRAP = 1 << 64  # nodes hold a negative dimension as an unsigned number

Signature = tuple[tuple[str, ...], tuple[int, ...]]
BiasOf = Callable[[Tensor], Tensor | None]


class Step:
    """One function of other steps' values; without any, of nothing (a source)."""

    __slots__ = ("function", "inputs")

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Step, ...] = ()) -> None:
        self.function = function
        self.inputs = inputs

    def run(self, values: dict[Step, Tensor]) -> Tensor:
        value = values.get(self)
        if value is None:
            value = values[self] = self.function(*(step.run(values) for step in self.inputs))
        return value


class Unchanged:
    """Gives a weight back if it is what it was. Its version tells what autograd would, and a few of its elements what
    was written past autograd: by `.data`, or by who took its memory away."""

    __slots__ = ("_handle", "_num_elements", "_some")

    def __init__(self, handle: Kept) -> None:
        tensor = handle.tensor
        within = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        self._handle = handle
        self._num_elements = min(tensor.numel(), within)  # an expanded tensor has fewer than it says
        self._some = self._look()

    def __call__(self) -> Tensor:
        tensor = self._handle.restore()
        if not torch.equal(self._look(), self._some):
            raise RuntimeError(
                f"a weight of shape {list(tensor.shape)} was changed between forward and backward, past autograd (by "
                "`.data` perhaps), and content that depends on it was to be recomputed; change it after the backward"
            )
        return tensor

    def _look(self) -> Tensor:
        tensor, most = self._handle.tensor.detach(), self._num_elements
        some = tensor.as_strided((min(most, LOOKED_AT),), (max(1, most // LOOKED_AT),), tensor.storage_offset())
        return some.clone().view(torch.uint8)  # bytes: a weight that is not a number is still what it was


class Walk:
    """One way back.

    weights   parameters that it goes through
    names     of the nodes that it goes through
    target    the tensor whose content is wanted
    bias_of   tells a frozen bias by its weight
    """

    def __init__(self, context: Context, bias_of: BiasOf, target: Tensor) -> None:
        self.target = target
        self.weights: list[Kept] = []
        self._context = context
        self._bias_of = bias_of
        self._sources: list[Handle] = []
        self._steps: dict[tuple[Any, int], Step | None] = {}
        self.names: list[str] = []
        self._num_products = 0

    @property
    def signature(self) -> Signature:
        """The same for the same way in another step."""
        return tuple(self.names), tuple(weight.tensor.data_ptr() for weight in self.weights)

    def to(self, node: Any, output: int) -> Recipe | None:
        """How to work out this output of `node`."""
        step = self.step(node, output)
        if step is None:
            return None
        with_views = [handle for handle in self._sources if isinstance(handle, View)]
        for view in with_views:
            view.stored.num_uses += 1
        return Recipe(lambda: step.run({}), tuple(with_views))

    def step(self, node: Any, output: int) -> Step | None:
        key = (node, output)
        if key not in self._steps:
            self._steps[key] = None  # a ring, which a graph has none of
            self._steps[key] = self._find(node, output)
        return self._steps[key]

    def operand(self, node: Any, field: str, place: int) -> Step | None:
        """An input of `node`: as it saved it, or where it did not, by the way that made it."""
        handle = handle_of(node, field) if field else None
        if handle is not None:
            return self.source(handle)
        number = saved_number(node, field) if field else None
        if number is not None:
            return Step(lambda: number)
        before, output = node.next_functions[place]
        return None if before is None else self.step(before, output)

    def source(self, handle: Handle) -> Step:
        self._sources.append(handle)
        if not isinstance(handle, Kept):
            return Step(handle.restore)
        self.weights.append(handle)
        return Step(Unchanged(handle))

    def bias(self, node: Any) -> Step | None:
        """What an Addmm adds: the graph names it where it is trained."""
        if node.next_functions[0][0] is not None:
            return self.operand(node, "", 0)
        weight = handle_of(node, "mat2")
        found = self._bias_of(weight.tensor) if isinstance(weight, Kept) else None
        return None if found is None else self.constant(found)

    def constant(self, leaf: Tensor) -> Step:
        """A parameter, or a leaf of the user's: as it is now, or an error."""
        return self.source(Kept(leaf.detach(), self._context, 0))

    def beside(self, made: Tensor) -> Step:
        """A small tensor that is kept for this way alone."""
        self._context.ledger.hold(made.nbytes)
        return self.source(Kept(made, self._context, made.nbytes))

    def is_one_more_product(self) -> bool:
        self._num_products += 1
        return self._num_products <= MAX_PRODUCTS

    def _find(self, node: Any, output: int) -> Step | None:
        name = node.name()
        self.names.append(name)
        if len(self.names) > MAX_NODES:
            return None
        if name == ACCUMULATE:
            return self.constant(node.variable)
        if name == FLASH_CPU:
            handle = handle_of(node, "output") if output == 0 else None
            return None if handle is None else self.source(handle)
        way = WAYS.get(name)
        if way is not None:
            return way(self, node, output)
        recipe = recipe_of(node, 1) if output == 0 else None
        if recipe is None:
            return None
        self._sources.extend(recipe.sources)
        return Step(recipe.compute)


Way = Callable[[Walk, Any, int], Step | None]


def _signed(number: int) -> int:
    return number - _WRAP if number >= _WRAP // 2 else number


def _same(walk: Walk, node: Any, _output: int) -> Step | None:
    return walk.operand(node, "", 0)


def _of_one(function: Callable[..., Tensor], *settings: str) -> Way:
    """A function of its one input and of numbers that the node holds."""

    def way(walk: Walk, node: Any, _output: int) -> Step | None:
        x = walk.operand(node, "", 0)
        values = [_signed(setting(node, name)) for name in settings]
        return x and Step(lambda value: function(value, *values), (x,))

    return way


def _as_output(function: Callable[[Tensor, Any], Tensor], part: int) -> Way:
    """A function of its one input and of the shape (0) or the dtype (1) of its output."""

    def way(walk: Walk, node: Any, output: int) -> Step | None:
        known = output_of_node(node, output)
        x = known and walk.operand(node, "", 0)
        wanted = known and known[part]
        return Step(lambda value: function(value, wanted), (x,)) if x else None

    return way


def _slice(walk: Walk, node: Any, _output: int) -> Step | None:
    x = walk.operand(node, "", 0)
    dim, start, end, step = (_signed(setting(node, name)) for name in ("dim", "start", "end", "step"))
    return x and Step(lambda value: torch.ops.aten.slice(value, dim, start, end, step), (x,))


def _permuted(walk: Walk, node: Any, _output: int) -> Step | None:
    x, dims = walk.operand(node, "", 0), [_signed(dim) for dim in setting(node, "dims")]
    return x and Step(lambda value: value.permute(dims), (x,))


def _piece(cut: Callable[[Tensor, Any], tuple[Tensor, ...]]) -> Way:
    """One of several outputs of a node that cuts its input."""

    def way(walk: Walk, node: Any, output: int) -> Step | None:
        x, how = walk.operand(node, "", 0), _cut_of(node)
        return x and Step(lambda value: cut(value, how)[output], (x,))

    return way


def _cut_of(node: Any) -> dict[str, Any]:
    names = ("dim", "split_size", "split_sizes")
    found = {name: setting(node, name) for name in names}
    found["dim"] = _signed(found["dim"])
    return found


def _sum(sign: float) -> Way:
    def way(walk: Walk, node: Any, _output: int) -> Step | None:
        left, right = walk.operand(node, "", 0), walk.operand(node, "", 1)
        alpha = sign * setting(node, "alpha", 1)
        return left and right and Step(lambda a, b: torch.add(a, b, alpha=alpha), (left, right))

    return way


def _pair(function: Callable[[Tensor, Tensor], Tensor]) -> Way:
    def way(walk: Walk, node: Any, _output: int) -> Step | None:
        left = walk.operand(node, "self", 0)
        right = left and walk.operand(node, "other", 1)
        return left and right and Step(function, (left, right))

    return way


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Way:
    """What the node itself has saved, or before that the function of its input."""

    def way(walk: Walk, node: Any, _output: int) -> Step | None:
        result = handle_of(node, "result")
        if result is not None:
            return walk.source(result)
        x, dim = walk.operand(node, "", 0), _signed(setting(node, "dim"))
        if x is not None:
            return Step(lambda value: function(value, dim), (x,))
        return _masked_softmax(walk, node) if function is torch.softmax else None

    return way


def _masked_softmax(walk: Walk, node: Any) -> Step | None:
    """Softmax over scores [B, H, T, S] that a mask was added to, which leaves no trace in the graph. It shows in the
    result: what is masked is zero in all heads, for all rows of a sample (padding) or all samples (causal)."""
    added, probabilities = node.next_functions[0][0], walk.target.detach()
    is_sum = added is not None and added.name() == ADD and added.next_functions[1][0] is None
    x = walk.operand(added, "", 0) if is_sum and probabilities.dim() == MASKED_DIMS else None
    if x is None:
        return None
    by_sample = walk.beside(probabilities.amax((1, 2), keepdim=True) == 0)
    by_row = walk.beside(probabilities.amax((0, 1), keepdim=True) == 0)

    def compute(scores: Tensor, hidden: Tensor, ahead: Tensor) -> Tensor:
        return torch.softmax(scores.masked_fill(hidden | ahead, -torch.inf), -1)

    return Step(compute, (x, by_sample, by_row))


def _joined(walk: Walk, node: Any, _output: int) -> Step | None:
    dim = _signed(setting(node, "dim"))
    parts = [walk.operand(node, "", place) for place in range(len(node.next_functions))]
    found = tuple(part for part in parts if part is not None)
    return Step(lambda *values: torch.cat(values, dim), found) if len(found) == len(parts) else None


def _addmm(walk: Walk, node: Any, _output: int) -> Step | None:
    bias = walk.bias(node) if walk.is_one_more_product() else None
    left = bias and walk.operand(node, "mat1", 1)
    right = left and walk.operand(node, "mat2", 2)
    alpha, beta = setting(node, "alpha"), setting(node, "beta")
    if bias is None or left is None or right is None:
        return None
    return Step(lambda b, x, w: torch.addmm(b, x, w, beta=beta, alpha=alpha), (bias, left, right))


def _product(walk: Walk, node: Any, _output: int) -> Step | None:
    left = walk.operand(node, "self", 0) if walk.is_one_more_product() else None
    right = left and walk.operand(node, "mat2", 1)
    return left and right and Step(torch.matmul, (left, right))


def _masked(walk: Walk, node: Any, _output: int) -> Step | None:
    """A device's dropout: y = x * mask / (1 - p)."""
    x, mask = walk.operand(node, "", 0), handle_of(node, "result1")
    share = setting(node, "p")
    scale = 0.0 if share == 1 else 1 / (1 - share)
    if x is None or mask is None:
        return None
    return Step(lambda value, keep: value * keep * scale, (x, walk.source(mask)))


# By the name of a node. What is not here goes by its rule (rules.py), or ends the way without a result.
WAYS: dict[str, Way] = {
    node_name(name): way
    for names, way in (
        ("View UnsafeView ReshapeAlias Squeeze Unsqueeze Flatten Unflatten", _as_output(torch.reshape, 0)),
        ("Alias Detach Clone Contiguous", _same),
        ("Expand", _as_output(torch.Tensor.expand, 0)),
        ("ToCopy", _as_output(torch.Tensor.to, 1)),
        ("T", _of_one(torch.Tensor.t)),
        ("Transpose", _of_one(torch.transpose, "dim0", "dim1")),
        ("Permute", _permuted),
        ("Slice", _slice),
        ("Select", _of_one(torch.select, "dim", "index")),
        ("Split", _piece(lambda value, how: torch.split(value, how["split_size"], how["dim"]))),
        ("SplitWithSizes", _piece(lambda value, how: torch.split(value, how["split_sizes"], how["dim"]))),
        ("Unbind", _piece(lambda value, how: torch.unbind(value, how["dim"]))),
        ("Neg", _of_one(torch.neg)),
        ("Add", _sum(1)),
        ("Sub", _sum(-1)),
        ("Mul", _pair(torch.mul)),
        ("Div", _pair(torch.div)),
        ("Cat", _joined),
        ("Softmax", _softmax(torch.softmax)),
        ("LogSoftmax", _softmax(torch.log_softmax)),
        ("Addmm", _addmm),
        ("Mm Bmm", _product),
        ("NativeDropout", _masked),
    )
    for name in names.split()
}
