"""The monitor measures what it says, and the recovery loop gives bits back."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from daf.quant import Engine, Wish
from daf.quant.measure.gradient import compare
from tests.unit.quant.host_arena import HostArena
from tests.unit.quant.test_engine_derive import NETS, data, gradients, relative_error


def test_a_comparison_tells_error_angle_and_bias_apart() -> None:
    exact = torch.tensor([3.0, 4.0])
    longer = compare("a", [(1.1 * exact, exact)])
    assert (longer.error, longer.cosine, longer.bias) == pytest.approx((0.1, 1.0, 0.1))
    turned = compare("b", [(torch.tensor([-4.0, 3.0]), exact)])
    assert (turned.error, turned.cosine, turned.bias) == pytest.approx((2**0.5, 0.0, -1.0))


@pytest.mark.parametrize("name", NETS)
def test_the_measured_error_is_the_true_one(name: str) -> None:
    make, x, _ = NETS[name]
    torch.manual_seed(0)
    net = make()
    with Engine(HostArena(), bits=2) as engine:
        gradients(net, x)
        engine.monitor.every = 1
        coded = gradients(net, x)
        assert engine.monitor.total is not None
        measured = engine.monitor.total.error
    assert measured == pytest.approx(relative_error(coded, gradients(net, x)), rel=1e-3)
    assert {layer.layer for layer in engine.monitor.layers} == {n.rpartition(".")[0] for n, _ in net.named_parameters()}


def test_measuring_leaves_the_gradient_as_it_would_have_been() -> None:
    make, x, _ = NETS["gelu"]
    net = make()
    results: list[list[Tensor]] = []
    for every in (0, 1):
        with Engine(HostArena(), bits=2) as engine:
            engine.monitor.every = every
            results.append(gradients(net, x))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def narrow_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))


def test_bits_come_back_until_the_gradient_is_as_good_as_wished() -> None:
    net, x = narrow_net(), data(512, 64)
    with Engine(HostArena(), bits="auto", wish=Wish(max_error=0.05)) as engine:
        engine.monitor.every = 2
        for _ in range(14):
            gradients(net, x)
        assert engine.monitor.total is not None
        assert engine.monitor.total.error < 0.08


def test_a_budget_too_small_for_the_wish_is_said_once() -> None:
    net, x = narrow_net(), data(512, 64)
    arena = HostArena()
    arena.budget_bytes = 120_000
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Engine(arena, bits="auto", wish=Wish(max_error=0.001)) as engine:
            engine.monitor.every = 2
            for _ in range(10):
                gradients(net, x)
    assert sum("does not give the bits" in str(one.message) for one in caught) == 1
