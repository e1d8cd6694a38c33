"""For every rule a script that has its trouble, run as a user would; a healthy one is only told that it fits."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

import pytest

from daf.server.verdict import RULES
from tests.tools import require_tool

START = """
import time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
def block(): return torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU())
net = torch.nn.Sequential(*(block() for _ in range(6)), torch.nn.Linear(128, 8))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
"""
LOOP = """
for step in range({steps}):
    x = torch.randn(2048, 128)
    optimizer.zero_grad()
    {loss}
    loss.backward()
    optimizer.step()
    {after}
"""


def script(*, steps: int = 20, before: str = "", loss: str = "loss = net(x).square().mean()", after: str = "") -> str:
    return START + before + LOOP.format(steps=steps, loss=loss, after=after or "pass")


SCRIPTS: dict[str, tuple[str, str]] = {
    "did_not_fit": ("6MiB", script(steps=2)),
    "memory_grows": (
        "1GiB",
        script(steps=40, before="losses = []", loss="y = net(x); loss = y.square().mean()", after="losses.append(y)"),
    ),
    "is_never_read": (
        "1GiB",
        script(before="teacher = torch.nn.Sequential(block(), block())", loss="teacher(x); loss = net(x).mean()"),
    ),
    "loses_bits": ("9MiB", script(steps=30)),
    "temporaries_are_large": (
        "150MiB",
        script(loss="big = torch.ones(40 * 2**18); loss = net(x).square().mean() + 0 * (big * 2).mean()"),
    ),
    "is_stopped": (
        "1GiB",
        script(before="from daf.session import active", after="active().arena.paused = step > 3"),
    ),
    "memory_is_in_pieces": (
        "400MiB",
        script(after="kept = [torch.empty(2**18) for _ in range(240)]; del kept[::2]"),
    ),
    "steps_are_uneven": ("1GiB", script(steps=70, after="time.sleep(0.3 if step % 8 == 7 else 0)")),
    "fits_exactly": ("1GiB", script()),
    "compresses_well": (
        "1GiB",
        script(
            steps=30,
            before="many = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(8))\n"
            "optimizer.add_param_group({'params': many.parameters()})",
            loss="loss = sum(one(torch.randn(2048, 128)).square().mean() for one in many)",
        ),
    ),
}  # fmt: skip
SETTINGS: dict[str, dict[str, str]] = {"compresses_well": {"DAF_MAX_ERROR": "0.5%"}, "loses_bits": {"DAF_RATIO": "16"}}


def environment(folder: pathlib.Path, budget: str, settings: Mapping[str, str]) -> dict[str, str]:
    own = {"DAF_RUNTIME_DIR": str(folder / "runtime"), "DAF_BUDGET": budget, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, **settings, "PYTHONWARNINGS": "ignore"}


def rules_of(folder: pathlib.Path, name: str) -> dict[str, str]:
    budget, text = SCRIPTS[name]
    (folder / "train.py").write_text(text)
    around = environment(folder, budget, SETTINGS.get(name, {}))
    training = {**around, "PYTORCH_ALLOCATOR": "daf"}
    subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=training, capture_output=True, check=False, timeout=200
    )
    command = [sys.executable, "-m", "daf", "export", "json", "-o", "-"]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=True, timeout=60)
    return {found["rule"]: found["text"] for found in json.loads(done.stdout)["verdicts"]}


def test_there_is_a_script_for_every_rule() -> None:
    assert set(SCRIPTS) == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_with_a_trouble_is_told_of_it(tmp_path: pathlib.Path, name: str) -> None:
    require_tool("c++", "g++", "clang++")
    found = rules_of(tmp_path, name)
    assert name in found, found
    if name == "fits_exactly":
        assert set(found) == {"fits_exactly"}
    if name == "memory_grows":
        assert "`losses`" in found[name]
    if name == "is_never_read":
        assert "Sequential.0.0" in found[name]
