"""DAF_DETERMINISTIC=on: the same run again gives the same losses and plans, however fast the machine is meanwhile."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import daf
from daf.quant.recompute import layers

WIDTH = 96


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def train(tick_seconds: float, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[list[float], list[Any]]:
    """Losses, and what each slot was planned to do, on a machine whose every look at the clock takes so long."""
    clock = itertools.count(step=tick_seconds)  # type: ignore[call-overload]
    monkeypatch.setattr(layers.time, "perf_counter", lambda: next(clock))
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(WIDTH, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    with daf.Session(budget="1GiB", ratio=8, sidecar="off", **settings) as session:
        for _ in range(6):
            x = torch.randn(1024, WIDTH)
            loss = nn.functional.cross_entropy(model(x), x[:, :8].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        slots = [(slot.name, slot.plan.kind, slot.plan.spec) for slot in session.engine.slots()]
        seconds = [slot.facts.recompute_seconds for slot in session.engine.slots()]
    return losses, [slots, seconds]


def test_the_speed_of_the_machine_changes_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = (train(tick, monkeypatch, deterministic=True) for tick in (1e-9, 10.0))
    assert quick == slow


def test_otherwise_recomputing_is_planned_with_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = (train(tick, monkeypatch) for tick in (1e-9, 10.0))
    assert quick[1][1] != slow[1][1]
