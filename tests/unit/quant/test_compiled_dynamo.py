"""A script compiled under DAF gives the graphs of plain torch: Dynamo stays out of DAF's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena

# Torch's own, in plain runs too: Dynamo asks tensors for their .grad where graphs break; Inductor imports what is old.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

X = torch.randn(256, 128, generator=torch.Generator().manual_seed(1))
Step = Callable[[], Tensor]
Case = Callable[[Any], tuple[nn.Module, Step]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Broken(Net):
    """Saves in compiled graphs, and between them."""

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.layers
        y = first(x).sin()
        torch._dynamo.graph_break()
        for layer in rest:
            y = layer(y)
        return y


def loss_of(net: nn.Module) -> Tensor:
    return F.cross_entropy(net(X), torch.arange(len(X)) % 4)


def a_function(backend: Any) -> tuple[nn.Module, Step]:
    net = Net()
    return net, torch.compile(lambda: loss_of(net), backend=backend, fullgraph=True)


def a_module(backend: Any) -> tuple[nn.Module, Step]:
    net = Net()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    return net, lambda: loss_of(compiled)


def a_module_compiled_in_place(backend: Any) -> tuple[nn.Module, Step]:
    net = Net()
    net.compile(backend=backend, fullgraph=True)
    return net, lambda: loss_of(net)


def a_region(backend: Any) -> tuple[nn.Module, Step]:
    inner = Net()
    net = nn.Sequential(nn.Identity(), inner)
    inner.compile(backend=backend, fullgraph=True)
    return net, lambda: loss_of(net)


def a_module_with_a_graph_break(backend: Any) -> tuple[nn.Module, Step]:
    net = Broken()
    compiled = torch.compile(net, backend=backend)
    return net, lambda: loss_of(compiled)


def a_gradient_of_torch_func(backend: Any) -> tuple[nn.Module, Step]:
    net = Net()

    def loss(params: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, params, (X,)).square().mean()

    compiled = torch.compile(torch.func.grad(loss), backend=backend, fullgraph=True)

    def step() -> Tensor:
        return sum(grad.square().sum() for grad in compiled(dict(net.named_parameters())).values())

    return net, step


def gradients_of_every_sample(backend: Any) -> tuple[nn.Module, Step]:
    net = nn.Linear(128, 4, bias=False)
    nn.init.constant_(net.weight, 0.01)
    one = torch.func.grad(lambda weight, x: F.linear(x, weight).tanh().sum())
    compiled = torch.compile(torch.func.vmap(one, in_dims=(None, 0)), backend=backend, fullgraph=True)
    return net, lambda: compiled(net.weight, X).square().sum()


CASES: list[Case] = [
    a_function, a_module, a_module_compiled_in_place, a_region, a_module_with_a_graph_break,
    a_gradient_of_torch_func, gradients_of_every_sample,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(case: Case, backend: str, num_steps: int = 3) -> tuple[tuple[Any, ...], list[Tensor]]:
    """What torch's own counters say of a few steps, and the gradients of the last."""
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend(backend)
    net, loss = case(counter)
    for _ in range(num_steps):
        net.zero_grad()
        loss().backward()
    num_nodes = [len(graph.graph.nodes) for graph in counter.graphs]
    said = counter.frame_count, counter.op_count, num_nodes, dict(counters["frames"]), dict(counters["graph_break"])
    return said, [p.grad for p in net.parameters() if p.grad is not None]


def assert_as_plain(case: Case, backend: str) -> None:
    plain, exact = train(case, backend)
    with Engine(HostArena(), bits="lossless") as engine:
        ours, got = train(case, backend)
    assert ours == plain
    assert engine.stats()["failures_total"] == 0
    assert len(got) == len(exact) > 0
    assert all(torch.equal(one, other) for one, other in zip(got, exact, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_graphs_and_gradients_are_those_of_plain_torch(case: Case) -> None:
    assert_as_plain(case, "aot_eager")


@pytest.mark.slow
def test_inductor_too_gets_one_graph() -> None:
    assert_as_plain(a_module, "inductor")


def test_a_compiled_model_is_compiled_once_more_at_most_when_an_engine_comes_and_never_when_it_goes() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    _, loss = a_module(counter)
    for is_on in (False, True, False, True, False):
        engine = Engine(HostArena(), bits="lossless")
        if is_on:
            engine.install()
        for _ in range(2):
            loss().backward()
        engine.remove()
    assert counter.frame_count <= 3


def test_a_transform_still_refuses_the_hooks_of_others() -> None:
    cosine = torch.func.grad(lambda x: x.sin().sum())
    theirs = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with Engine(HostArena(), bits=2):
        with theirs, pytest.raises(RuntimeError, match="saved tensor hooks"):
            cosine(torch.zeros(4))
        assert torch.equal(cosine(torch.zeros(4)), torch.ones(4))
