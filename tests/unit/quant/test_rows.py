"""Rows of one size: they come back, and loud and quiet ones err alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daf.quant import Engine
from daf.quant.encode.rows import alike
from daf.quant.plan.policy import Wish
from tests.unit.quant.host_arena import HostArena


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_come_back_and_were_of_one_size(dtype: torch.dtype) -> None:
    x = (torch.randn(64, 128) * torch.logspace(-2, 2, 64)[:, None] + 3.0).to(dtype)
    made, rows = alike(x, 128)
    assert rows.num_bytes == 64 * 4
    assert torch.allclose(made.float().square().mean(1), torch.ones(64), atol=0.05)
    rows.undo(made)
    error = (made.float() - x.float()).norm(dim=1) / x.float().norm(dim=1)
    assert float(error.max()) < (1e-5 if dtype is torch.float32 else 0.01)


def test_rows_that_are_constant_stay_so() -> None:
    x = torch.zeros(4, 32)
    x[1] = 7.0
    made, rows = alike(x, 32)
    rows.undo(made.add_(0.1))
    assert torch.equal(made, x)


def test_what_a_norm_reads_errs_little_in_quiet_rows() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
    x = torch.randn(2048, 64) * torch.logspace(-2, 2, 2048)[torch.randperm(2048), None]
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=6.0)) as engine:
        for _ in range(4):
            net.zero_grad()
            F.gelu(net(x)).square().mean().backward()
        ours = [p.grad.clone() for p in net[1:].parameters()]
        assert [slot.name for slot in engine.table if slot.facts.is_input_of_norm] == ["Sequential.1:1"]
        assert engine.stats()["stored_bytes"] == 0
    net.zero_grad()
    F.gelu(net(x)).square().mean().backward()
    exact = [p.grad for p in net[1:].parameters()]
    assert all((a - b).norm() < 0.05 * b.norm() for a, b in zip(ours, exact, strict=True))
