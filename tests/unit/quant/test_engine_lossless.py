"""Lossless mode: the same machinery, and not one bit of difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena
from tests.unit.quant.test_engine_derive import NETS, gradients


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_equal_to_the_last_bit(name: str) -> None:
    make, x, _ = NETS[name]
    torch.manual_seed(0)
    net = make()
    with Engine(HostArena(), bits="lossless") as engine:
        for _ in range(2):
            ours = gradients(net, x)
        assert engine.stats()["coded_total"] > 0
    for got, want in zip(ours, gradients(net, x), strict=True):
        assert torch.equal(got, want)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "matmul": lambda x: x @ x.t(),
    "softmax": lambda x: F.softmax(x, dim=-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "gelu": F.gelu,
    "relu and product": lambda x: F.relu(x) * x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck_and_gradgradcheck_pass(name: str) -> None:
    x = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    arena = HostArena()
    with Engine(arena, bits="lossless", min_bytes=1):
        assert torch.autograd.gradcheck(lambda x: FUNCTIONS[name](x * 1), (x,))
        assert torch.autograd.gradgradcheck(lambda x: FUNCTIONS[name](x * 1), (x,))
    assert arena.stashes


@pytest.mark.parametrize("part", [lambda x: x[:, 16:], lambda x: x[::2], lambda x: x[:, None, :16].expand(-1, 2, -1)])
def test_a_view_with_gaps_comes_back_with_them(part: Callable[[Tensor], Tensor]) -> None:
    """softplus_backward rounds otherwise where it cannot read in one stretch."""
    x = torch.randn(1024, 32, requires_grad=True)
    weights = torch.randn_like(part(x))

    def gradient() -> Tensor:
        return torch.autograd.grad((F.softplus(part(x * 1)) * weights).sum(), x)[0]

    with Engine(HostArena(), bits="lossless") as engine:
        ours = gradient()
        assert engine.stats()["coded_total"] > 0
    assert torch.equal(ours, gradient())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_float_type_comes_back_exactly(dtype: torch.dtype) -> None:
    x = torch.randn(128, 128).to(dtype).requires_grad_()
    with Engine(HostArena(), bits="lossless"):
        (grad,) = torch.autograd.grad((x * 1).exp().sum(), x)
    assert torch.equal(grad, x.detach().exp())


def test_convolutions_are_equal_in_channels_last_too() -> None:
    net = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(4, 8, 32, 32).to(memory_format=torch.channels_last)
    with Engine(HostArena(), bits="lossless"):
        ours = gradients(net, x)
    assert all(torch.equal(a, b) for a, b in zip(ours, gradients(net, x), strict=True))
