"""Training while the budget falls, over the command page, from what plain needs to a tenth of it."""

from __future__ import annotations

import math
import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.budget import falling
from daf.allocator import Arena
from daf.allocator.stats import reader
from daf.quant import Engine
from tests.tools import require_tool


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.stem(x)).flatten(2).transpose(1, 2)
        return self.mlp(x).mean(1)


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(torch.randn(16, 3, 32, 32)), torch.randint(10, (16,)))
    loss.backward()
    optimizer.step()
    return loss.item()


def budget_in_force(page: reader.StatsPage, num_bytes: int) -> None:
    generation = page.request_budget(num_bytes)
    deadline = time.monotonic() + 10.0
    while page.outcome(generation) is None:
        assert time.monotonic() < deadline, "the run did not answer"
        time.sleep(0.02)


def test_training_goes_on_to_the_floor_while_the_budget_falls() -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Arena(budget_bytes=64 << 20) as arena, Engine(arena, bits=4) as engine:
        train_step(net, optimizer)
        plain_bytes = engine.stats()["peak_raw_bytes"]
        page = reader.StatsPage(arena.page_path)
        for percent in range(100, 5, -10):
            budget_in_force(page, plain_bytes * percent // 100)
            for _ in range(2):
                assert math.isfinite(train_step(net, optimizer))
        assert all(parameter.isfinite().all() for parameter in net.parameters())
        stats = arena.stats()
        assert stats["budget_bytes"] <= plain_bytes * 0.11
        assert stats["resident_bytes"] <= stats["budget_bytes"]
        assert arena.is_valid()
    assert engine.stats()["failures_total"] == 0


def test_a_budget_below_the_floor_passes_tensors_through_and_says_so() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Arena(budget_bytes=256 << 10, publish=False) as arena, Engine(arena, bits=4) as engine:
        with pytest.warns(UserWarning, match="no room"):
            loss = train_step(net, optimizer)
        assert math.isfinite(loss)
        assert engine.stats()["passed_no_room_total"] > 0


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("resnet18", {"batch_size": 8, "scale": 0.25}),
        ("gpt-small", {"batch_size": 4, "seq_len": 64, "scale": 0.5}),
    ],
)
def test_a_whole_model_under_a_session_goes_on_to_its_floor(model: str, settings: dict[str, object]) -> None:
    require_tool("c++", "g++", "clang++")
    rows = falling.fall(model, settings, num_steps=1)
    assert all(math.isfinite(row.loss) for row in rows)
    assert all(row.sampled_peak_bytes <= row.budget_bytes for row in rows)
    assert rows[-1].outcome == "refused"  # a tenth of what plain needs is less than its parameters
    assert rows[-1].budget_bytes < rows[0].budget_bytes
