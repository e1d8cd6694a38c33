"""A session opens and closes inside a script, and what it made may live on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import daf


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))


def test_a_graph_and_a_tensor_that_outlive_their_session_still_work(model: torch.nn.Module) -> None:
    x = torch.randn(512, 256)
    with daf.Session(budget="64MiB", bits=8) as session:
        loss = model(x).square().mean()
        kept = torch.ones(1000, 1000)
        assert session.stats()["stashes"] > 0
    loss.backward()
    assert torch.isfinite(model[0].weight.grad).all()
    assert kept.sum() == 1e6


def test_one_session_follows_another(model: torch.nn.Module) -> None:
    for _ in range(3):
        with daf.Session(budget="64MiB", bits=4) as session:
            model(torch.randn(512, 256)).square().mean().backward()
            assert session.stats()["reserves_total"] > 0


def test_a_second_session_inside_the_first_is_refused() -> None:
    with daf.Session(budget="64MiB"), pytest.raises(daf.DafError, match="open in this process already"):
        daf.Session(budget="64MiB").start()


def test_a_closed_session_says_so() -> None:
    with pytest.raises(daf.DafError, match="not open"):
        daf.Session(budget="64MiB").stats()


def test_the_budget_changes_while_the_session_is_open() -> None:
    with daf.Session(budget="64MiB") as session:
        assert session.set_budget("32MiB").state == "applied"
        assert session.stats()["budget_bytes"] == 32 << 20


def test_a_request_beyond_the_budget_is_torchs_own_error_and_a_smaller_one_then_works() -> None:
    with daf.Session(budget="64MiB"):
        with pytest.raises(torch.OutOfMemoryError, match=r"64\.0 MiB"):
            torch.empty(1 << 28)
        assert torch.ones(1 << 20).sum() == 1 << 20


def test_what_the_budget_has_no_room_for_goes_to_the_spill_folder_and_comes_back_exact(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    layers = torch.nn.Sequential(*(model for _ in range(8)))
    x = torch.randn(512, 256)
    layers(x).square().mean().backward()
    exact = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with daf.Session(budget="3MiB", bits="lossless", cpu_allocator=False, spill=tmp_path) as session:
        layers(x).square().mean().backward()
        assert session.stats()["spills_total"] > 0
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(model.parameters(), exact, strict=True))


def test_a_fidelity_target_takes_the_place_of_a_ratio() -> None:
    errors, saved = {}, {}
    for settings in ({"max_error": 0.01}, {"ratio": 20}):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256))
        with daf.Session(budget="64MiB", **settings) as session:
            monitor = session.engine.monitor
            monitor.every = 2
            for _ in range(10):
                net(torch.randn(4096, 256)).square().mean().backward()
            assert monitor.total is not None
            name = next(iter(settings))
            errors[name], saved[name] = monitor.total.error, session.stats()["last_step_saved_bytes"]
    assert errors["max_error"] < 0.012 < errors["ratio"]
    assert saved["max_error"] > saved["ratio"]


LEAVES_NO_TRACE = """
import threading, warnings, torch
from torch import nn
from torch.nn.modules import module as hooks

def look():
    return {
        "backward": torch.autograd.backward,
        "rrelu": (torch.rrelu, torch.rrelu_),
        "disable": torch._C._autograd._saved_tensors_hooks_disable,
        "filters": list(warnings.filters),
        "module hooks": [len(getattr(hooks, name)) for name in dir(hooks) if name.startswith("_global_forward")],
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "threads": {thread.name for thread in threading.enumerate()},
        "kernels": [
            torch._C._dispatch_dump(f"aten::{name}")
            for name in ("convolution", "convolution_backward", "native_batch_norm_backward")
        ],
    }

def train():
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    for _ in range(4):
        net(torch.randn(16, 3, 32, 32)).square().mean().backward()

import daf
train()
before = look()
with daf.Session(budget="64MiB", bits=2):
    train()
    assert look() != before
after = look()
print([name for name in before if before[name] != after[name]])
"""


def test_a_closed_session_leaves_torch_as_it_was() -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVES_NO_TRACE], capture_output=True, text=True, check=False, timeout=200
    )
    assert child.stdout == "[]\n", child.stderr
