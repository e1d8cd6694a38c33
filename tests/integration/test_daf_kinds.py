"""Parameters, gradients and optimizer state as a walk over the model counts them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

SCRIPT = """
import json, sys, torch
from daf.session import active
frozen = torch.nn.Linear(300, 300)
net = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))
frozen.requires_grad_(False)
model = torch.nn.Sequential(frozen, net)
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(64, 300)).square().mean().backward()
    optimizer.step()
size = lambda tensors: sum(t.nbytes for t in tensors)
states = [t for state in optimizer.state.values() for t in state.values()]
walked = [size(model.parameters()), size(p.grad for p in net.parameters()), size(states)]
stats = active().engine.arena.stats()
print(json.dumps([walked, [stats[name] for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")]]))
"""


def test_what_is_told_is_what_a_walk_counts(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "DAF_RUNTIME_DIR": str(tmp_path), "PYTORCH_ALLOCATOR": "daf", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    walked, told = json.loads(done.stdout)
    assert told == walked


def test_closing_a_session_takes_the_optimizers_hooks_off() -> None:
    script = """
import torch, daf
from torch.optim import optimizer
before = len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)
with daf.Session(budget="64MiB", sidecar="off"):
    pass
assert before == (len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks))
"""
    subprocess.run([sys.executable, "-c", script], check=True)
