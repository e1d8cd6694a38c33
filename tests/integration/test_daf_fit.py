"""`daf fit` says before the long run what it needs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from daf.cli.fit import Trial, batch_factor, budgets_between

SCRIPT = """
import torch
net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(8)))
optimizer = torch.optim.AdamW(net.parameters())
while True:
    optimizer.zero_grad()
    net(torch.randn(2048, 256)).square().mean().backward()
    optimizer.step()
"""


def test_budgets_go_down_in_equal_factors() -> None:
    assert budgets_between(100, 1600) == [1600, 800, 400, 200, 100]


def test_the_batch_grows_by_what_grows_with_it() -> None:
    plain = Trial(0, True, 0.0, 1.0, live_bytes=500, plain_bytes=500, fixed_bytes=100)
    assert batch_factor(plain, 900) == 2.0
    assert batch_factor(plain, 50) == 0.0


def test_a_script_is_tried_at_several_budgets(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "daf", "fit", "--json", "--steps", "3", "--budget", "1GiB", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found = json.loads(done.stdout)
    fixed_bytes = 4 * 8 * (256 * 256 + 256) * 4
    assert found["plain_bytes"] > fixed_bytes + 8 * 2 * 2048 * 256 * 4 * 0.9, "parameters, AdamW and saved activations"
    assert found["trials"][0]["fits"]
    assert found["least_bytes"] <= 1.05 * found["plain_bytes"]
    assert found["batch_factor"] == pytest.approx(
        (2**30 - fixed_bytes) / (found["plain_bytes"] - fixed_bytes), rel=0.05
    )


def test_a_script_that_does_not_train_is_said_to(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("print('hello')")
    done = subprocess.run(
        [sys.executable, "-m", "daf", "fit", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "nothing was measured" in done.stderr
