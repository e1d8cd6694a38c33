"""`daf fit` says before the long run what it needs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

from daf.cli.fit import batch
from daf.cli.fit.command import batch_factor, budgets_between, fit
from daf.cli.fit.trial import Trial, Trials

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


def test_the_search_for_a_batch_ends_close_to_the_largest() -> None:
    for limit in (1, 7, 100, 1000):
        tried: list[int] = []

        def fits(size: int, limit: int = limit, tried: list[int] = tried) -> bool:
            tried.append(size)
            return size <= limit

        found = batch.largest(8, 20.0, fits)
        assert limit * 0.94 - 1 <= found <= limit
        assert len(tried) <= 14
    assert batch.largest(8, 20.0, lambda _: False) == 0


def test_the_largest_batch_is_tried_with_the_scripts_own_option(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(trials: Trials, settings: dict[str, str], command: list[str] | None = None) -> Trial | None:
        size = batch.option_value(command or trials.command, "--batch-size")
        budget, plain, least = int(settings.get("DAF_BUDGET", 10**9)), 1000 + 100 * size, 1000 + 20 * size
        return Trial(budget, True, 0.1, 1.0, least, plain, 1000) if least <= budget else None

    monkeypatch.setattr(Trials, "run", run)
    script = tmp_path / "train.py"
    script.write_text("")
    words = ["--json", "--budget", "5000B", "--batch-arg", "--batch-size", str(script), "--batch-size", "8"]
    done = CliRunner().invoke(fit, words)
    found = json.loads(done.stdout)
    assert found["batch_factor"] == 5
    assert 0.94 * 200 <= found["batch"] <= 200, "compressed, five times what fits exactly"
    assert 0.9 * 1160 <= found["least_bytes"] <= 1.3 * 1160


def test_a_batch_option_without_a_number_is_said_to_be_missing(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "daf", "fit", "--budget", "1GiB", "--batch-arg", "--batch-size", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no --batch-size with a number" in done.stderr
