"""Stashes that go to a file and come back, under the engine: gradients do not notice."""

from __future__ import annotations

import math
import pathlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.allocator import Arena
from daf.quant import Engine

ROOMY_BYTES = 64 << 20


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(512, 512), nn.GELU())), nn.Linear(512, 10))


def gradients(net: nn.Module) -> list[Tensor]:
    net.zero_grad()
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(1))
    loss = F.cross_entropy(net(x), torch.arange(512) % 10)
    assert math.isfinite(loss.item())
    loss.backward()
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def test_lossless_stashes_come_back_from_the_file_as_they_were(tmp_path: pathlib.Path) -> None:
    net = make_net()
    expected = gradients(net)
    with Arena(4 << 20, publish=False, spill_dir=tmp_path) as arena, Engine(arena, bits="lossless") as engine:
        for _ in range(3):
            torch.testing.assert_close(gradients(net), expected, rtol=0, atol=0)
        stats = arena.stats()
        assert stats["spills_total"] > 0
        assert stats["restores_total"] > 0
        assert stats["peak_resident_bytes"] <= 4 << 20
        assert stats["spilled_bytes"] == 0
        assert arena.is_valid()
    assert engine.stats()["failures_total"] == 0  # and no warning: nothing was passed through


def test_every_floor_is_reached_before_anything_is_spilled(tmp_path: pathlib.Path) -> None:
    net = make_net()
    with Arena(ROOMY_BYTES, publish=False) as arena, Engine(arena, bits=4):
        gradients(net)
        plane_bytes = int(arena.stats()["peak_plane_bytes"])
    with Arena(plane_bytes // 2, publish=False, spill_dir=tmp_path) as arena, Engine(arena, bits=4):
        gradients(net)
        assert arena.stats()["evictions_total"] > 0
        assert arena.stats()["spills_total"] == 0
    with Arena(plane_bytes // 5, publish=False, spill_dir=tmp_path) as arena, Engine(arena, bits=4) as engine:
        assert all(gradient.isfinite().all() for gradient in gradients(net))
        assert arena.stats()["spills_total"] > 0
        assert arena.is_valid()
    assert engine.stats()["failures_total"] == 0
    assert list(tmp_path.iterdir()) == []
