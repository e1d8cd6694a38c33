"""Fidelity by slot: true to the op that was measured, without a trace in the gradient, never in the way of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.kernels import Spec
from daf.quant import Engine, Wish
from daf.quant.encode.choice import EXACT
from daf.quant.measure import op
from daf.quant.measure.op import SAMPLED, is_exact, some_of, worst_cosine
from tests.unit.quant.host_arena import HostArena
from tests.unit.quant.test_engine_derive import NETS, data, gradients

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def ample_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One op a step until all were measured, however small the steps are."""
    monkeypatch.setattr(op, "FIRST_SHARE", math.inf)


class EveryOp(nn.Module):
    """Convolution, batch norm, max pooling, embedding, attention, layer norm, GELU, dropout, softmax, matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.token = nn.Embedding(1000, 16)
        self.qkv, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16))
        self.head = nn.Linear(16, 32)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image).flatten(2).transpose(1, 2) + self.token(
            (image[:, 0, ::2, ::2].flatten(1) * 99).long().abs()
        )
        q, k, v = (part.view(8, 256, 2, 8).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x
        return self.head(x + self.mlp(x))

    def loss(self, image: Tensor) -> Tensor:
        return F.cross_entropy(self(image).flatten(0, 1), torch.arange(8 * 256) % 32)


def train(net: EveryOp, steps: int) -> list[Tensor]:
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        net.zero_grad()
        net.loss(data(8, 3, 32, 32)).backward()
        found += [parameter.grad.clone() for parameter in net.parameters()]
    return found


def fresh_net() -> EveryOp:
    torch.manual_seed(0)
    return EveryOp()


@pytest.mark.parametrize("bits", ["auto", 2])
def test_every_op_is_measured_and_the_gradient_is_the_same_to_the_last_bit(bits: str | int) -> None:
    results, arena = [], HostArena()
    for is_measured in (False, True):
        with Engine(arena, bits=bits, wish=Wish(ratio=16.0), min_bytes=4096) as engine:
            engine.guard.bound = math.inf
            if not is_measured:
                engine.spot.begin_step = lambda _is_learning: None  # type: ignore[method-assign]
            results.append(train(fresh_net(), 50))
            stats, slots = engine.stats(), engine.slots()
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert stats["failures_total"] == stats["fidelity_failures_total"] == 0
    coded = [slot for slot in slots if slot.seen.num_saves and slot.plan.spec and slot.plan.spec.codec not in EXACT]
    assert [slot.name for slot in coded if not 0 < slot.seen.fidelity <= 1] == []
    assert min(slot.seen.fidelity for slot in coded) < 0.9999
    assert all(arena.rows[slot.id]["fidelity"] == slot.seen.fidelity for slot in coded)


def measured(run: Callable[[], Any], bits: int = 2) -> Engine:
    with Engine(HostArena(), bits=bits, min_bytes=4096) as engine:
        for _ in range(12):
            run()
    return engine


def test_the_measured_fidelity_of_a_layer_is_that_of_its_weight_gradient() -> None:
    net, x, grad = nn.Linear(64, 32), data(512, 64), data(512, 32)

    def weight_gradient() -> Tensor:
        net.zero_grad()
        net(x).backward(grad)
        assert net.weight.grad is not None
        return net.weight.grad.flatten().clone()

    engine = measured(weight_gradient)
    with Engine(HostArena(), bits=2, min_bytes=4096):
        coded = weight_gradient()
    true = float(F.cosine_similarity(coded, weight_gradient(), dim=0))
    (slot,) = engine.slots()
    assert slot.seen.fidelity == pytest.approx(true, abs=0.01)
    assert true < 0.99


@pytest.mark.parametrize("name", NETS)
def test_more_bits_are_more_faithful(name: str) -> None:
    make, x, _ = NETS[name]
    torch.manual_seed(0)
    net = make()
    worst = [
        min(slot.seen.fidelity for slot in measured(lambda: gradients(net, x), bits).slots() if slot.seen.fidelity)
        for bits in (1, 4, 8)
    ]
    assert worst[0] < worst[1] < worst[2]
    assert worst[2] > 0.99


def test_hooks_of_the_user_run_once() -> None:
    net, x, calls = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), data(512, 64), []
    net[2].register_full_backward_hook(lambda *_: calls.append("module"))
    with Engine(HostArena(), bits=2, min_bytes=4096) as engine:
        for _ in range(6):
            out = net(x)
            out.register_hook(lambda _: calls.append("tensor"))
            out.grad_fn.register_hook(lambda *_: calls.append("node"))
            out.square().mean().backward()
    assert engine.stats()["fidelity_measured_total"] >= 3
    assert sorted(calls) == sorted(["module", "tensor", "node"] * 6)


def test_a_run_without_room_is_not_measured_until_it_has_room() -> None:
    net, x, arena = nn.Linear(64, 64), data(512, 64), HostArena()
    arena.budget_bytes = x.nbytes
    with Engine(arena, bits=2, min_bytes=4096) as engine:
        for _ in range(40):
            gradients(net, x)
        assert engine.stats()["fidelity_measured_total"] == 0
        arena.budget_bytes = 8 * x.nbytes
        for _ in range(40):
            gradients(net, x)
        assert engine.stats()["fidelity_measured_total"] > 0


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grad


def test_a_function_written_in_python_is_left_alone() -> None:
    net, x = nn.Linear(64, 64), data(512, 64)
    engine = measured(lambda: Doubled.apply(net(x)).sum().backward())
    assert all(is_exact(slot) for slot in engine.slots() if "Doubled" in slot.op)
    assert engine.stats()["failures_total"] == 0


def test_what_goes_wrong_in_a_measurement_does_not_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_pairs: object) -> float:
        raise MemoryError

    monkeypatch.setattr("daf.quant.measure.op.worst_cosine", broken)
    net, x = nn.Linear(64, 64), data(512, 64)
    engine = measured(lambda: gradients(net, x))
    assert engine.stats()["fidelity_failures_total"] > 0
    assert all(slot.seen.fidelity == 0 for slot in engine.slots())


def test_a_second_backward_and_a_graph_of_the_gradient_are_left_alone() -> None:
    net, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), data(512, 64).requires_grad_()

    def run() -> None:
        out = net(x).square().mean()
        out.backward(retain_graph=True)
        out.backward()
        (grad,) = torch.autograd.grad(net(x).square().mean(), x, create_graph=True)
        grad.square().sum().backward()

    assert measured(run).stats()["fidelity_failures_total"] == 0


def test_nothing_is_held_once_the_graph_is_gone() -> None:
    net, x, arena = fresh_net(), data(8, 3, 32, 32), HostArena()
    with Engine(arena, bits=2, min_bytes=4096) as engine:
        for _ in range(6):
            net.loss(x).backward()
            assert arena.num_live() == 0
            assert len(engine.monitor._contents) == 0
        net.loss(x)
        assert engine.stats()["stored_bytes"] == 0
        assert arena.num_live() == 0


def test_the_worst_of_several_gradients_counts() -> None:
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([-4.0, 3.0])
    assert worst_cosine([(a, a)]) == pytest.approx(1.0)
    assert worst_cosine([(a, a), (a + b, a)]) == pytest.approx(0.5**0.5)
    assert worst_cosine([]) == 0.0
    assert 0 < worst_cosine([(torch.full((2,), torch.nan), a)]) < 0.001
    assert worst_cosine([(a, torch.full((2,), torch.inf))]) == 0.0


def test_the_published_width_is_what_evictions_left() -> None:
    net, x, arena = nn.Linear(64, 64), data(512, 64), HostArena()
    with Engine(arena, bits=6, min_bytes=4096) as engine:
        for _ in range(18):
            loss = net(x).square().mean()
            for stash in arena.stashes:
                if not stash.is_released:
                    stash.drop_to_floor()
            loss.backward()
    (slot, *_) = engine.slots()
    assert slot.plan.spec is not None
    assert slot.plan.spec.bits == 6
    assert arena.rows[slot.id]["bits"] == 1


def test_a_new_plan_is_measured_anew() -> None:
    net, x, arena = nn.Linear(64, 64), data(8192, 64), HostArena()
    with Engine(arena, bits="auto", wish=Wish(ratio=4.0), min_bytes=4096) as engine:
        for _ in range(23):  # the next plan of its own comes after step 31
            gradients(net, x)
        (slot, *_) = (slot for slot in engine.slots() if slot.seen.fidelity)
        assert slot.plan.spec is not None
        wide, before = slot.seen.fidelity, engine.stats()["fidelity_measured_total"]
        slot.plan.planned = Spec("meansplit", 1)
        for _ in range(7):
            gradients(net, x)
    assert engine.stats()["fidelity_measured_total"] > before
    assert 0 < slot.seen.fidelity < wide


def test_large_gradients_are_compared_by_samples_of_all_rows_and_columns() -> None:
    grad = torch.arange(1024 * 512, dtype=torch.float32).view(1024, 512)
    whole, sampled = some_of((grad[:4], None, grad)).values()
    assert torch.equal(whole, grad[:4])
    assert SAMPLED // 2 < len(sampled) <= SAMPLED
    assert len(set((sampled % 512).tolist())) == 512
    assert some_of(grad.to_sparse()) == {}
