"""One compiled pair of graphs, forward and backward: what of the saved tensors is stashed, and where the ops stand.

torch inlines hooks for saved tensors one tensor at a time, packs at the end of the forward and unpacks at the start of
the backward. As laid out that saves nothing: all originals live until the forward ends, and all are decoded before the
first is read. So when torch has inlined the last (it then checks both graphs), `finish` moves every op:

    forward     stash right after its tensor is made
    backward    unstash right before its first reader, made to depend on the gradient that this reader also takes
                attention's output and log-sum-exp recomputed from the q, k, v that the reader gets
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from daf.quant.compiled import readers
from daf.quant.compiled.numbers import number_of
from daf.quant.compiled.readers import VIEWS, NotBenignError, Readers, name_of

# torch.fx.Graph and Node. A node's arguments have a type that fits everything, so checking against it checks nothing.
Graph = Any
Node = Any

STATES = 3  # for each weight: its gradient, and Adam's two averages
SPARED = 4  # of the largest tensor: temporaries
COPIES = VIEWS | {"aten._to_copy", "aten.clone", "prims.convert_element_type", "aten.slice", "aten.select"}


@dataclass(frozen=True, slots=True)
class Exact:
    """Kept as torch has it, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stashed:
    number: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Not saved: views of an attention's output (0) or its log-sum-exp (1), which are recomputed in the backward.

    attention   the backward's node, whose q, k, v they come from
    source      the forward's node
    num_views   between its output and what is saved
    """

    number: int
    attention: Node
    source: Node
    output: int
    num_views: int


Decision = Exact | Stashed | Recomputed


@dataclass(frozen=True, slots=True)
class Rules:
    """What an engine wants of compiled graphs. `num_alike` is how many modules of a class there are: a graph of one of
    them is run for each."""

    min_bytes: int
    may_recompute: bool
    is_exact: bool
    num_alike: Callable[[str], int] = lambda _name: 1


class GraphPair:
    """Decides for every tensor that the forward saves, at the first that torch asks about: later the graphs have ops of
    ours in them."""

    def __init__(self, forward: Graph, backward: Graph, rules: Rules, room_bytes: int | None = None) -> None:
        """`room_bytes`: leave the graphs as they are, if training with them takes no more."""
        self._forward, self._backward = forward, backward
        self._rules = rules
        self.decisions: dict[str, Decision] = {}
        _name_alike(forward, backward)
        self._saved = {node.name: node for node in backward.nodes if node.op == "placeholder"}
        self._made = {node.name: node for node in forward.nodes if node.name in self._saved}
        self.spared_bytes = 0
        if room_bytes is not None and (needed := self._need_bytes()) <= room_bytes:
            self.spared_bytes = needed
        else:
            self._decide_and_order()

    def _need_bytes(self) -> int:
        """What training with plain graphs takes: a gradient and two states for each input (most are weights), what is
        saved in each run of the graph, and a few of the largest tensors beside."""
        sizes = {node.name: _num_bytes(_value(node)) for node in self._forward.nodes if _is_tensor(node)}
        inputs = sum(sizes.get(node.name, 0) for node in self._forward.nodes if node.op == "placeholder")
        saved = sum(sizes.get(node.name, 0) for node in self._made.values() if node.op != "placeholder")
        num_runs = max(1, self._rules.num_alike(_outermost_class(self._forward)))
        return STATES * inputs + num_runs * saved + SPARED * max(sizes.values(), default=0)

    def _decide_and_order(self) -> None:
        forward, backward, rules = self._forward, self._backward, self._rules
        self._gradients = _gradients(backward)
        self._name = _fingerprint(forward)
        self._attentions: dict[Node, Node] = {}  # of the backward, which are to be run again; of the forward
        self._recomputed = self._find_attentions() if rules.may_recompute else {}
        self._decide_all()
        noisy = self._noisy_attentions()
        if len(noisy) < len(self._attentions):
            self._attentions = noisy
            self._recomputed = {name: it for name, it in self._recomputed.items() if it.attention in noisy}
            self._decide_all()
        _when_checked(forward, self._finish_forward)
        _when_checked(backward, self._finish_backward)

    def decide(self, name: str) -> Decision:
        return self.decisions.get(name, Exact("unknown"))

    # -- what is stashed

    def _decide_all(self) -> None:
        attended = {attention: {1, 2, 3} for attention in self._attentions}
        self._readers = Readers(self._gradients, attended)
        self.decisions = {name: self._decide(name) for name in self._made}

    def _decide(self, name: str) -> Decision:
        made, saved = self._made[name], self._saved[name]
        value = made.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.is_sparse or value.is_nested:
            return Exact("unsupported")
        if name in self._recomputed:
            return self._recomputed[name]
        if _num_bytes(value) < self._rules.min_bytes:
            return Exact("small")
        if _is_copy_of_input(made):
            return Exact("parameter")
        return self._by_readers(made, saved, value)

    def _by_readers(self, made: Node, saved: Node, value: torch.Tensor) -> Decision:
        ops: set[str] = set()
        if value.dtype.is_floating_point:
            if self._rules.is_exact:
                return Exact("lossless")
            if readers.is_statistic(value):
                return Exact("statistic")
            is_relu = name_of(_origin(made)) == "aten.relu"
            if name_of(_origin(made)) in readers.STEEP:
                return Exact(name_of(_origin(made)))
            try:
                ops = self._readers.ops(saved, is_relu=is_relu)
            except NotBenignError as error:
                return Exact(str(error))
            if not ops or (readers.PRODUCT in ops and not readers.is_factor(_origin(made))):
                return Exact("no reader" if not ops else "aten.pow")
        elif value.dtype.is_complex:
            return Exact("unsupported")
        return Stashed(self._number(made, ops))

    def _number(self, made: Node, ops: set[str]) -> int:
        stack = list((made.meta.get("nn_module_stack") or {}).values())
        path = re.sub(r"[LG]\['(\w+)'\]", r"\1", stack[-1][0]) if stack else ""
        return number_of(f"{path}:{made.name}" if path else made.name, ops, self._name)

    # -- attention

    def _find_attentions(self) -> dict[str, Recomputed]:
        """Saved tensors that need not be: output and log-sum-exp, views of them too, where both can be recomputed."""
        sources = {name: _attention_of(made) for name, made in self._made.items()}
        found: dict[str, Recomputed] = {}
        for node in self._backward.nodes:
            if name_of(node) != readers.ATTENTION_BACKWARD:
                continue
            out, lse = (sources.get(_origin(node.args[place]).name) for place in (4, 5))
            if out is None or lse is None or out[0] is not lse[0] or node.args[6] != 0.0:  # dropout is drawn anew
                continue
            for name, source in sources.items():
                if source is not None and source[0] is out[0] and self._is_benign(name, node):
                    found[name] = Recomputed(self._number(self._made[name], set()), node, *source)
            self._attentions[node] = out[0]
        return found

    def _is_benign(self, name: str, attention: Node) -> bool:
        """Whether others that read an attention's output may have it recomputed from noisy q, k, v."""
        try:
            Readers(self._gradients, {attention: {1, 2, 3, 4, 5}}).ops(self._saved[name], is_relu=False)
        except NotBenignError:
            return False
        return True

    def _noisy_attentions(self) -> dict[Node, Node]:
        """Those that read something stashed. Any other may have its output as it was."""
        stashed = {self._saved[name] for name, it in self.decisions.items() if isinstance(it, Stashed)}
        for node in self._backward.nodes:
            if any(argument in stashed for argument in node.all_input_nodes):
                stashed.add(node)
        return {
            node: source
            for node, source in self._attentions.items()
            if any(argument in stashed for argument in node.args[1:4])
        }

    def _recompute_attentions(self) -> None:
        """Output and log-sum-exp of every attention that reads noise come from what it reads. One that torch did not
        ask the hooks about, because the user has it too, is replaced all the same."""
        stand_ins = [node for node in self._backward.nodes if name_of(node) == "daf.recomputed"]
        decided = {it.number: it for it in self._recomputed.values()}
        results = {node: self._run_again(node, source) for node, source in self._attentions.items()}
        for node in stand_ins:
            it = decided[node.args[3]]
            node.replace_all_uses_with(_as_view(results[it.attention][it.output], node, it.num_views))
            self._backward.erase_node(node)
        for attention, result in results.items():
            attention.meta.pop("eager_input_vals", None)
            for place in (4, 5):
                if _origin(attention.args[place]).op == "placeholder":
                    attention.update_arg(place, result[place - 4])

    def _run_again(self, attention: Node, source: Node) -> list[Node]:
        """Nodes for output and log-sum-exp, before the attention's backward."""
        graph = self._backward
        kwargs = {name: attention.kwargs[name] for name in ("attn_mask", "scale") if name in attention.kwargs}
        target = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        results = []
        with graph.inserting_before(attention):
            again = graph.call_function(target, (*attention.args[1:4], *attention.args[6:8]), kwargs)
            again.meta["val"] = tuple(source.meta["val"][:2])
            for output, value in enumerate(again.meta["val"]):
                results.append(graph.call_function(operator.getitem, (again, output)))
                results[-1].meta["val"] = value
        return results

    # -- where the ops stand

    def _finish_forward(self) -> None:
        for node in list(self._forward.nodes):
            if name_of(node) == "daf.stash":
                node.args[0].append(node)

    def _finish_backward(self) -> None:
        graph = self._backward
        self._recompute_attentions()
        positions = {node: position for position, node in enumerate(graph.nodes)}
        for node in list(graph.nodes):
            if name_of(node) == "daf.unstash":
                _put_after(node, _gradient_of_first_reader(node, self._gradients, positions))
        _sort(graph, self._gradients)


def _as_view(value: Node, like: Node, num_views: int) -> Node:
    """`value` with sizes and strides of the stand-in `like`: all views at once, since in the forward's graph they may
    have been made of sizes that the backward has no names for."""
    if not num_views:
        return value
    graph = value.graph
    with graph.inserting_after(value):
        view = graph.call_function(torch.ops.aten.as_strided.default, (value, *like.args[:2], 0))
    view.meta["val"] = like.meta["val"]
    return view


def _when_checked(graph: Graph, do: Callable[[], None]) -> None:
    """Has `do` run when torch checks the graph, which it does once all hooks are inlined."""

    def lint() -> None:
        del graph.lint
        do()
        graph.lint()

    graph.lint = lint


def _gradients(graph: Graph) -> set[Node]:
    """The nodes of a backward graph that are, or depend on, gradients that come in."""
    found: set[Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and node.name.startswith("tangents")
        if is_tangent or any(argument in found for argument in node.all_input_nodes):
            found.add(node)
    return found


def _outermost_class(graph: Graph) -> str:
    """Of the module that the graph is of, or the first that it calls."""
    for node in graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        if stack:
            kind = stack[0][1]
            return kind.rpartition(".")[2] if isinstance(kind, str) else str(kind.__name__)
    return ""


def _fingerprint(graph: Graph) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for node in graph.nodes:
        value = node.meta.get("val")
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        digest.update(f"{node.name} {node.target} {shape}\n".encode())
    return digest.hexdigest()


def _num_bytes(value: torch.Tensor) -> int:
    """By the sizes that a graph was traced with, where they may change: asking would add a guard."""
    number = value.element_size()
    sizes: Any = zip(value.shape, value.stride(), strict=True)
    for size, stride in sizes:
        if not isinstance(stride, int) or stride != 0:
            number *= size if isinstance(size, int) else int(size.node.hint or 1)
    return number


def _origin(node: Node) -> Node:
    """What a view is a view of."""
    while name_of(node) in VIEWS:
        node = node.args[0]
    return node


def _is_copy_of_input(node: Node) -> bool:
    """A weight that autocast has cast, a transposed one, or a part of the user's input."""
    while name_of(node) in COPIES:
        node = node.args[0]
    return bool(node.op == "placeholder")


def _attention_of(node: Node) -> tuple[Node, int, int] | None:
    """The attention, which output of it, and the number of views from there to the node."""
    num_views = 0
    while name_of(node) in VIEWS:
        num_views += 1
        node = node.args[0]
    if name_of(node) == "getitem" and name_of(node.args[0]) == readers.ATTENTION:
        return node.args[0], node.args[1], num_views
    return None


def _name_alike(forward: Graph, backward: Graph) -> None:
    """Gives states of random numbers, which a checkpoint saves, the name that the backward has for them: torch finds
    saved tensors by name, and fails on these."""
    saved = [node for node in backward.nodes if node.op == "placeholder" and not node.name.startswith("tangents")]
    num_symbols = sum(not _is_tensor(node) for node in saved)
    outputs: Any = forward.output_node().args[0]
    saved = saved[num_symbols:] + saved[:num_symbols]
    for made, node in zip(outputs[len(outputs) - len(saved) :], saved, strict=True):
        if made.name != node.name and node.name.startswith("rng_state"):
            made._rename(node.name)


def _gradient_of_first_reader(node: Node, gradients: set[Node], positions: dict[Node, int]) -> Node | None:
    """The gradient that meets the decoded tensor first. It cannot depend on that tensor: no cycle comes of it."""
    below, ways = {node}, [node]
    first: tuple[int, Node] | None = None
    while ways:
        for reader in ways.pop().users:
            if reader in below:
                continue
            below.add(reader)
            if reader not in gradients:
                ways.append(reader)
                continue
            met = [one for one in reader.all_input_nodes if one in gradients and _is_tensor(one)]
            if met and (first is None or positions[reader] < first[0]):
                first = positions[reader], met[0]
    return first[1] if first is not None and first[1] not in below else None


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _is_tensor(node: Node) -> bool:
    return isinstance(_value(node), torch.Tensor)


def _put_after(node: Node, gradient: Node | None) -> None:
    """A new node: the old one's meta remembers its arguments."""
    if gradient is None:
        return
    graph = node.graph
    with graph.inserting_before(node):
        new = graph.call_function(node.target, (node.args[0], gradient, *node.args[2:]), dict(node.kwargs))
    new.meta = {key: value for key, value in node.meta.items() if key != "eager_input_vals"}
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _sort(graph: Graph, gradients: set[Node]) -> None:
    """Gradients in the order that there was, and each other node right before the first gradient that needs it."""
    order: list[Node] = []
    done: set[Node] = set()

    def place(node: Node) -> None:
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [argument for argument in top.all_input_nodes if argument not in done]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                order.append(top)

    nodes = list(graph.nodes)
    last = graph.output_node()
    for node in [node for node in nodes if node.op == "placeholder"] + [node for node in nodes if node in gradients]:
        place(node)
    for node in nodes:
        place(node)
    for node in order:
        if node is not last:
            last.prepend(node)
