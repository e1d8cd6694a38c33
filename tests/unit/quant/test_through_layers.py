# ruff: noqa: ARG001  (an engine that is only switched on is an argument all the same)
"""Content recomputed through layers: what it saves, and that it never goes through a weight that has changed."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.quant import Engine
from daf.quant.plan.menu import Kind
from daf.quant.plan.policy import Wish
from daf.quant.recompute.layers import Through
from daf.quant.saved.slots import Slot
from tests.unit.quant.host_arena import HostArena

DIM = 128


class Block(nn.Module):
    """A transformer's block; `is_frozen`: adapters train beside weights that do not."""

    def __init__(self, *, attention: str = "fused", has_bias: bool = True, is_frozen: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=has_bias), nn.Linear(DIM, DIM, bias=has_bias)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=has_bias), nn.Linear(4 * DIM, DIM, bias=has_bias)
        self.attention, self.mask = attention, torch.zeros(1)
        self.adapter: nn.Module | None = None
        if is_frozen:
            self.requires_grad_(False)
            self.adapter = nn.Sequential(nn.Linear(DIM, 4, bias=False), nn.Linear(4, 3 * DIM, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attend(self, z: Tensor) -> Tensor:
        batch, length, _ = z.shape
        qkv = self.qkv(z) if self.adapter is None else self.qkv(z) + self.adapter(z)
        q, k, v = qkv.view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        if self.attention == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.mask, -1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, DIM))


class Net(nn.Module):
    def __init__(self, **kwargs: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(DIM, DIM)
        self.blocks = nn.Sequential(Block(**kwargs), Block(**kwargs))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.first(x))


def batch() -> Tensor:
    return torch.randn(8, 64, DIM, generator=torch.Generator().manual_seed(1))


def train(net: nn.Module, num_steps: int) -> None:
    for _ in range(num_steps):
        net.zero_grad()
        net(batch()).square().mean().backward()


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def error(ours: list[Tensor], exact: list[Tensor]) -> float:
    away = sum(float((a - b).square().sum()) for a, b in zip(ours, exact, strict=True))
    return math.sqrt(away / sum(float(b.square().sum()) for b in exact))


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=48.0)) as engine:
        yield engine


def through(engine: Engine) -> list[Slot]:
    """The slots that are recomputed through layers."""
    return [slot for slot in engine.table if slot.plan.kind is Kind.RECOMPUTE and slot.facts.is_through_layers]


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_block_stores_little_more_than_the_inputs_of_its_norms(engine: Engine, has_bias: bool) -> None:
    net = Net(has_bias=has_bias)
    train(net, 4)
    assert len(through(engine)) >= 2 * 4  # q, k, v and the hidden layer of each block
    ours = gradients(net)
    engine.remove()
    train(net, 1)
    assert error(ours, gradients(net)) < 0.05


def test_frozen_weights_and_adapters_are_gone_through(engine: Engine) -> None:
    net = Net(is_frozen=True)
    train(net, 4)
    assert len(through(engine)) >= 6
    ours = gradients(net)
    engine.remove()
    train(net, 1)
    assert error(ours, gradients(net)) < 0.05


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_probabilities_are_recomputed_under_a_mask_that_leaves_no_trace(engine: Engine, mask: str) -> None:
    net = Net(attention="eager")
    hidden = torch.zeros(1)
    if mask == "padding":
        hidden = torch.where(torch.arange(64) < torch.arange(20, 60, 5)[:, None, None, None], 0.0, -1e9)
    elif mask == "causal":
        hidden = torch.full((64, 64), -torch.inf).triu(1)
    for block in net.blocks:
        block.mask = hidden
    train(net, 4)
    assert any("Softmax" in slot.op for slot in through(engine))
    ours = gradients(net)
    engine.remove()
    train(net, 1)
    assert error(ours, gradients(net)) < 0.05


def test_log_probabilities_are_recomputed_from_exact_content_alone(engine: Engine) -> None:
    net, classes = Net(), 512
    net.head = nn.Linear(DIM, classes)
    target = torch.arange(512) % classes
    loss = nn.CrossEntropyLoss()
    for _ in range(4):
        net.zero_grad()
        loss(net.head(net(batch())).flatten(0, 1), target).backward()
    found = [slot for slot in through(engine) if "LogSoftmax" in slot.op]
    assert found
    kept = [slot for slot in engine.table if slot.id in found[0].facts.sources]
    assert [slot.plan.kind for slot in kept] == [Kind.KEEP]


def test_all_is_gone_with_the_graph(engine: Engine) -> None:
    net = Net()
    train(net, 4)
    gc.disable()
    try:
        loss = net(batch()).square().mean()
        assert engine.ledger.raw_bytes > 0
        engine.spot.begin_step(is_learning=False)  # lets go of the op that it may be about to measure
        del loss
        engine.ledger.settle()
        assert engine.ledger.raw_bytes == 0
    finally:
        gc.enable()


def test_an_optimizer_that_steps_before_the_backward_has_content_worked_out_first() -> None:
    """Autograd allows it where the changed weight's own input has no gradient: nothing of it is needed."""
    net = Net()
    net.blocks = nn.Identity()
    net.head = nn.Linear(DIM, DIM)
    net.forward = lambda x: net.head(F.gelu(net.first(x)))  # type: ignore[method-assign]
    train(net, 1)
    exact = gradients(net)
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=8.0)) as engine:
        train(net, 4)
        recomputed = len(through(engine))
        net.zero_grad()
        loss = net(batch()).square().mean()
        for parameter in net.first.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.SGD(net.first.parameters(), 0.5).step()
        net.zero_grad()
        loss.backward()
    assert recomputed
    assert error(gradients(net), exact) < 0.1


def write_data(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.data.add_(1.0)


def write_in_place(net: nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)


def take_memory_away(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.untyped_storage().resize_(0)


@pytest.mark.parametrize("change", [write_data, write_in_place, take_memory_away])
def test_a_weight_that_changed_is_never_gone_through(engine: Engine, change: Callable[[nn.Module], None]) -> None:
    net = Net()
    train(net, 4)
    assert through(engine)
    loss = net(batch()).square().mean()
    change(net)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_a_weight_that_is_replaced_leaves_the_old_one_to_go_through(engine: Engine) -> None:
    net = Net()
    train(net, 4)
    exact = gradients(net)
    net.zero_grad()
    loss = net(batch()).square().mean()
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = torch.zeros_like(module.weight)
            module.bias.data = torch.zeros_like(module.bias)
    loss.backward()
    assert error(gradients(net), exact) < 0.05


def test_an_optimizer_inside_the_backward_changes_nothing(engine: Engine) -> None:
    net = Net()
    train(net, 4)
    assert through(engine)
    exact, found = gradients(net), []
    optimizers = {p: torch.optim.SGD([p], 0.5) for p in net.parameters()}

    def step(parameter: Tensor) -> None:
        found.append((parameter, parameter.grad.clone()))
        optimizers[parameter].step()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    net.zero_grad()
    net(batch()).square().mean().backward()
    by_parameter = dict(found)
    assert error([by_parameter[p] for p in net.parameters()], exact) < 0.05


@pytest.mark.parametrize("kind", ["tied", "spectral"])
def test_weights_that_are_shared_or_made_anew_give_the_same_gradients(engine: Engine, kind: str) -> None:
    net = Net()
    if kind == "tied":
        net.blocks[1].up.weight = net.blocks[0].up.weight
    else:
        net.blocks[0].up = torch.nn.utils.parametrizations.spectral_norm(net.blocks[0].up)
        net.eval()
    train(net, 4)
    ours = gradients(net)
    engine.remove()
    train(net, 1)
    assert error(ours, gradients(net)) < 0.05


def test_what_comes_out_otherwise_is_not_recomputed(engine: Engine) -> None:
    """The graph does not show what was added to a product of a frozen weight."""
    net = Net(is_frozen=True)
    shift = torch.nn.Parameter(torch.ones(4 * DIM), requires_grad=False)
    for block in net.blocks:
        block.up.forward = lambda z, up=block.up: torch.addmm(shift, z.flatten(0, 1), up.weight.t()).view(
            *z.shape[:-1], -1
        )
    train(net, 4)
    assert not any("up" in slot.path for slot in through(engine))
    hidden = [slot for slot in engine.table if slot.seen.raw_bytes == 8 * 64 * 4 * DIM * 4]
    assert hidden
    assert all(slot not in through(engine) for slot in hidden)


def test_two_readers_share_one_product(engine: Engine) -> None:
    net = Net()
    train(net, 4)
    calls = []
    original = Through.decode
    Through.decode = lambda self, layout: (calls.append(id(self)), original(self, layout))[1]  # type: ignore[method-assign]
    try:
        train(net, 1)
    finally:
        Through.decode = original  # type: ignore[method-assign]
    assert len(calls) == len(set(calls))


def test_one_content_is_read_in_two_shapes(engine: Engine) -> None:
    """z and its transpose are one memory; z follows from a product."""
    net = Net()
    net.forward = lambda x: (z := net.first(x.flatten(0, 1)).view(512, DIM)) @ z.t()  # type: ignore[method-assign]
    train(net, 4)
    ours = gradients(net)
    engine.remove()
    net.zero_grad()
    train(net, 1)
    assert error(ours, gradients(net)) < 0.1


def test_a_stack_of_layers_is_not_recomputed_from_its_first_input_alone(engine: Engine) -> None:
    """Backward asks for the last layer first: each would run all layers before it anew."""
    net = Net()
    net.layers = nn.Sequential(*[nn.Sequential(nn.Linear(DIM, DIM), nn.GELU()) for _ in range(12)])
    net.forward = net.layers.forward  # type: ignore[method-assign]
    train(net, 4)
    calls = []
    addmm = torch.addmm
    torch.addmm = lambda *args, **kwargs: (calls.append(1), addmm(*args, **kwargs))[1]  # type: ignore[assignment]
    try:
        train(net, 1)
    finally:
        torch.addmm = addmm
    assert len(calls) <= 3 * 12
