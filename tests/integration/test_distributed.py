"""Ranks of one job, each with DAF from the environment: data parallel, and fully sharded."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.tools import require_tool

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from daf import session

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for _ in range(3) for layer in (nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128))]
model = nn.Sequential(*layers)
if sys.argv[1] == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
x = torch.randn(512, 128)
losses = []
for _ in range(6):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
open_session = session.active()
assert open_session.stats()["reserves_total"] > 0, "nothing was encoded"
assert open_session.arena.is_valid()
assert losses[-1] < losses[0], losses
dist.barrier()
dist.destroy_process_group()
print("fine", flush=True)
"""


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_ranks_train_with_their_activations_encoded(way: str, tmp_path: pathlib.Path) -> None:
    require_tool("c++", "g++", "clang++")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {**os.environ, "PYTORCH_ALLOCATOR": "daf", "DAF_BUDGET": "256MiB", "DAF_BITS": "8"}
    result = subprocess.run(
        [*launch, str(script), way], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.stdout.count("fine") == 2, result.stdout + result.stderr
