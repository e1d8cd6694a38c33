"""One op after another between two linear layers: exact when lossless, close at 8 bits, finite at one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena

ROWS, COLS = 256, 64
_REVERSED = torch.arange(COLS - 1, -1, -1).expand(ROWS, COLS)


def _near_identity(x: Tensor) -> Tensor:
    """A well-conditioned symmetric matrix from the first rows."""
    return x[:COLS] @ x[:COLS].t() * 0.01 + torch.eye(COLS)


def _sampled(x: Tensor) -> Tensor:
    grid = torch.rand(1, ROWS, COLS, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return F.grid_sample(x.view(1, 1, ROWS, COLS), grid, align_corners=False).view(ROWS, COLS)


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix), right)


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x, inplace=True),
    "relu6": F.relu6,
    "leaky relu": F.leaky_relu,
    "random leaky relu": lambda x: F.rrelu(x, training=True),
    "elu": F.elu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "hardswish": F.hardswish,
    "log-sigmoid": F.logsigmoid,
    "gated": lambda x: F.glu(torch.cat([x, x], -1)),
    "softmax of a mask with infinities": lambda x: x.masked_fill(x < -1, float("-inf")).softmax(-1),
    "log-softmax": lambda x: x.log_softmax(-1),
    "log-sum-exp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "exponential": lambda x: (x * 0.1).exp(),
    "cube": lambda x: x**3,
    "division": lambda x: x / (x.abs() + 1),
    "deviation": lambda x: x / (x.std(0) + 1),
    "running product": lambda x: (x * 0.1 + 1).cumprod(1),
    "sorted": lambda x: x.sort(-1).values,
    "gathered": lambda x: x.gather(1, _REVERSED),
    "scattered": lambda x: torch.zeros_like(x).scatter_add(1, _REVERSED, x),
    "dropout": lambda x: F.dropout(x, 0.2),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.2),
    "spectrum": lambda x: torch.fft.rfft(x).abs()[:, :32].repeat(1, 2),
    "complex product": lambda x: (torch.complex(x, x) * torch.complex(x, -x)).real * 0.1,
    "double product": lambda x: (x.double() * x.double()).float(),
    "half product": lambda x: (x.bfloat16() * x.bfloat16()).float(),
    "distances": lambda x: torch.cdist(x, x[:COLS]),
    "sampled by coordinates": _sampled,
    "inverse": lambda x: torch.linalg.inv(_near_identity(x)).repeat(ROWS // COLS, 1),
    "cholesky": lambda x: torch.linalg.cholesky(_near_identity(x)).repeat(ROWS // COLS, 1),
    "solved by factors": lambda x: _solved(_near_identity(x), x[:COLS]).repeat(ROWS // COLS, 1),
    "matrix exponential": lambda x: torch.linalg.matrix_exp(_near_identity(x)).repeat(ROWS // COLS, 1) * 0.1,
    "orthogonal part": lambda x: torch.linalg.qr(_near_identity(x))[0].repeat(ROWS // COLS, 1),
    "transposed memory": lambda x: x.t().contiguous().t() * x,
    "expanded mean": lambda x: x * x.mean(0, keepdim=True).expand_as(x),
}


class Between(nn.Module):
    """Linear, op, linear: the op reads an activation, and its output is one."""

    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(COLS, COLS), nn.Linear(COLS, COLS)
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(self.op(self.before(x)))
        return out


def _gradient(net: nn.Module) -> Tensor:
    """[number of parameters], the same at every call: seed and data are."""
    torch.manual_seed(1)
    net.zero_grad(set_to_none=True)
    out = net(torch.randn(ROWS, COLS))
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("name", OPS)
def test_an_op_between_layers_keeps_its_gradient(name: str) -> None:
    torch.manual_seed(0)
    net = Between(OPS[name])
    exact = _gradient(net)
    errors = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Casting complex values")
        for bits in ("lossless", 8, 1, "auto"):
            with Engine(HostArena(), bits=bits, min_bytes=1024) as engine:
                for _ in range(3):  # the first step learns which op reads what
                    coded = _gradient(net)
                assert engine.stats()["failures_total"] == 0
                assert engine.stats()["coded_total"] > 0
            errors[bits] = float((coded - exact).norm() / exact.norm())
    assert errors["lossless"] == 0
    assert errors[8] < 0.2
    assert all(math.isfinite(error) and error < 2 for error in errors.values()), errors
