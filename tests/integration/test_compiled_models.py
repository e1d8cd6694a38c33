"""Compiled models under a session: the budget alone, torch's cache on disk, data parallel, Inductor's modes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import daf

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WIDTH, ROWS = 128, 1024


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def whole(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, backend="aot_eager")


def function(model: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        output: Tensor = model(x)
        return output

    return torch.compile(run, backend="aot_eager")


def regions(model: nn.Module) -> Callable[[Tensor], Tensor]:
    for block in model.children():
        block.compile(backend="aot_eager")
    return model


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(compiles: Callable[..., Any], num_steps: int = 5) -> list[Tensor]:
    """The gradient of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(8)))
    run = compiles(model)
    found = []
    for number in range(num_steps):
        model.zero_grad()
        torch.manual_seed(number)
        run(torch.randn(ROWS, WIDTH)).square().mean().backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return found


@pytest.mark.parametrize("compiles", [whole, function, regions], ids=lambda one: one.__name__)
def test_a_budget_alone_compresses_what_compiled_graphs_save(compiles: Callable[..., Any]) -> None:
    with daf.Session(budget="4GiB", sidecar="off") as ample:
        exact = train(compiles)
        needed = ample.stats()["peak_live_bytes"]
        assert ample.engine.num_stashes == 0, "an ample budget leaves the graphs to plain torch"
    assert all(torch.equal(one, other) for one, other in zip(exact, train(compiles), strict=True))
    torch._dynamo.reset()
    with daf.Session(budget=int(0.6 * needed), sidecar="off") as session:
        ours = train(compiles)
        stats = session.stats()
    assert stats["peak_live_bytes"] <= 0.6 * needed
    assert stats["failures_total"] == 0
    for one, other in zip(ours, exact, strict=True):
        assert (one - other).norm() < 0.1 * other.norm()


def test_a_budget_that_falls_has_plain_graphs_compiled_once_more() -> None:
    with daf.Session(budget="1GiB", sidecar="off") as session:
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(8)))
        run = whole(model)
        x = torch.randn(ROWS, WIDTH)
        for step in range(8):
            if step == 2:
                assert session.engine.num_stashes == 0
                needed = session.stats()["peak_live_bytes"]
                session.arena.set_budget(int(0.6 * needed), force=True)
            model.zero_grad()
            run(x).square().mean().backward()
        assert session.engine.num_stashes > 0


def test_torch_gets_its_own_compile_back() -> None:
    before = torch.compile
    handler = torch._dynamo.callback_handler
    num_listeners = len(handler.start_callbacks)
    with daf.Session(budget="1GiB", sidecar="off"):
        assert torch.compile is not before
        assert len(handler.start_callbacks) == num_listeners + 1
    assert torch.compile is before
    assert len(handler.start_callbacks) == num_listeners


SCRIPT = """
import json, sys, torch, daf
from torch import nn
from torch._dynamo.utils import counters
with daf.Session(budget=sys.argv[1], sidecar="off") as session:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 1024), nn.GELU(), nn.Linear(1024, 128))
    run = torch.compile(model)
    for _ in range(3):
        run(torch.randn(8192, 128)).square().mean().backward()
    print(json.dumps({**counters["aot_autograd"], "stashes": session.engine.num_stashes}))
"""


def run_script(budget: str, cache: Path) -> dict[str, int]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, budget]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_second_process_takes_graphs_from_torchs_cache_of_its_own_budget(tmp_path: Path) -> None:
    cold, warm = (run_script("150MiB", tmp_path) for _ in range(2))
    assert cold["stashes"] > 0
    assert warm["stashes"] == cold["stashes"]
    assert warm.get("autograd_cache_hit", 0) >= 1
    assert warm.get("autograd_cache_miss", 0) == 0
    assert run_script("4GiB", tmp_path)["stashes"] == 0
