"""What the stats page says of saved activations is what plain training would hold, and what is held instead."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from daf.allocator import Arena
from daf.quant import Engine


def saved_by_plain(x: torch.Tensor, weight: torch.Tensor) -> int:
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is not weight and tensor.data_ptr() != weight.data_ptr():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.gelu(F.relu(x @ weight) @ weight).sum()
    return sum(storages.values())


def test_raw_bytes_are_what_plain_training_saves_and_kept_tensors_count_on_both_sides() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(128, 128))
    x = torch.randn(4096, 128)
    plain_bytes = saved_by_plain(x, weight)
    with Arena(64 << 20, publish=False) as arena, Engine(arena, bits=4):
        F.gelu(F.relu(x @ weight) @ weight).sum().backward()  # shows who reads what
        loss = F.gelu(F.relu(x @ weight) @ weight).sum()
        stats = arena.stats()
        assert stats["saved_raw_bytes"] == plain_bytes
        assert stats["plane_bytes"] + stats["saved_kept_bytes"] < plain_bytes
        loss.backward()
        del loss
        stats = arena.stats()
        assert (stats["saved_raw_bytes"], stats["saved_kept_bytes"]) == (0, 0)
        assert stats["peak_saved_raw_bytes"] >= plain_bytes
