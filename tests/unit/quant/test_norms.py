"""Layer norms whose rows differ in size: noise that is small beside a loud row must not swamp a quiet one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena

ROWS, COLS = 512, 64


class Stack(nn.Module):
    """Residual branches, each behind a norm of its own."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(COLS) for _ in range(num))
        self.layers = nn.ModuleList(nn.Linear(COLS, COLS) for _ in range(num))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + 0.1 * layer(norm(x))
        return x


def gradients(model: nn.Module, x: Tensor) -> Tensor:
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quiet_rows_beside_loud_ones_do_not_make_gradients_explode(bits: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Stack(6).to(dtype)
    loudness = torch.tensor([1.0, 0.003, 0.003, 0.003]).repeat(ROWS // 4)[:, None]
    x = (torch.randn(ROWS, COLS) * loudness).to(dtype)
    exact = gradients(model, x).float()
    with Engine(HostArena(), bits=bits, min_bytes=1024):
        coded = gradients(model, x).float()
    assert (coded - exact).norm() < 1.2 * exact.norm()


def test_a_norm_stored_exactly_gives_the_gradient_of_plain_torch_to_the_last_bit() -> None:
    torch.manual_seed(0)
    model, x = Stack(2), torch.randn(ROWS, COLS)
    exact = gradients(model, x)
    with Engine(HostArena(), bits="lossless", min_bytes=1024):
        assert torch.equal(gradients(model, x), exact)
