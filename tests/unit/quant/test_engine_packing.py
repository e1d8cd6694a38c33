"""The engine packs by any way with the same gradients, and nothing is left pending or leaked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from daf.allocator import Arena
from daf.quant import Engine


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena(256 << 20, publish=False) as arena:
        yield arena


def gradients(arena: Arena, packing: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    x = torch.randn(1024, 512, requires_grad=True)
    with Engine(arena, bits=4, packing=packing):
        for _ in range(3):
            model(x * 1.5).square().mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("packing", ["worker", "device", "auto"])
def test_every_way_of_packing_gives_the_gradients_of_inline(arena: Arena, packing: str) -> None:
    for inline, other in zip(gradients(arena, "inline"), gradients(arena, packing), strict=True):
        assert torch.equal(inline, other)
    assert arena.stats()["stashes"] == 0


def test_graphs_that_are_dropped_before_they_are_packed_leak_nothing(arena: Arena) -> None:
    model, x = nn.Linear(512, 512), torch.randn(2048, 512)
    with Engine(arena, bits=2, packing="worker"):
        for _ in range(20):
            model(x * 2).sum()
    assert arena.stats()["stashes"] == 0
    assert arena.is_valid()
