"""What coding does to numbers, through a whole backward: bias, and values that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena

WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, "auto"]


def mean_gradient_error(rounding: str, num_steps: int) -> tuple[float, float]:
    """Relative error of one step's weight gradient, and of the mean over many, with 2 bits.

    A gradient that is linear in what was saved: two linear layers with a product between them.
    """
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 8)
    x, gate, target = torch.randn(512, 64), torch.rand(512, 64), torch.randn(512, 8)

    def gradient() -> Tensor:
        hidden = first(x) * gate
        (second(hidden) * target).mean().backward()
        grads = [parameter.grad.flatten() for net in (first, second) for parameter in net.parameters()]
        for parameter in (*first.parameters(), *second.parameters()):
            parameter.grad = None
        return torch.cat(grads)

    exact = gradient()
    with Engine(HostArena(), bits=2, rounding=rounding):
        gradient()  # shows who reads what
        grads = [gradient() for _ in range(num_steps)]
    errors = [float((grad - exact).norm() / exact.norm()) for grad in (grads[0], torch.stack(grads).mean(0))]
    return errors[0], errors[1]


def test_stochastic_rounding_is_unbiased_through_a_whole_backward() -> None:
    one, mean = mean_gradient_error("stochastic", 100)
    assert one > 0.05, "something is coded"
    assert mean < 2.0 * one / 100**0.5


def test_rounding_to_the_nearest_errs_less_and_stays_where_it_is() -> None:
    one, mean = mean_gradient_error("nearest", 5)
    assert one < mean_gradient_error("stochastic", 1)[0]
    assert mean == pytest.approx(one, rel=1e-4)


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'up'.*nearest, stochastic"):
        Engine(HostArena(), bits=2, rounding="up")


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_comes_back_so_when_nobody_looked_for_it(bits: int | str, value: float) -> None:
    weight = torch.randn(256, 256).requires_grad_()
    with Engine(HostArena(), bits=bits) as engine:
        for step in range(11):
            x = torch.randn(256, 256).requires_grad_()
            if step == 10:
                x = torch.where(torch.eye(256) == 1, value, x)
            (grad,) = torch.autograd.grad((weight * (x * 1)).sum(), weight)
        assert engine.stats()["coded_total"] >= 11
    assert torch.equal(grad.isfinite(), torch.eye(256) == 0)
    assert torch.allclose(grad.diagonal(), torch.full((256,), value), equal_nan=True)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_gradient_scaler_sees_an_overflow_that_comes_in_step_ten(bits: int | str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with Engine(HostArena(), bits=bits):
        for step in range(12):
            x = torch.randn(256, 128)
            if step == 10:
                x[3, 5] = float("inf")
            with torch.autocast("cpu", dtype):
                loss = net(x).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            assert (scaler.get_scale() < before) == (step == 10)
    assert all(parameter.isfinite().all() for parameter in net.parameters())
