"""An unchanged script, run as a user runs it: a process of its own, from a folder of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())])
x = torch.randn(512, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.9f}")
"""
PROBE = """
from daf import session
active = session.active()
names = ("reserves_total", "last_step_saved_bytes", "last_step_saved_raw_bytes")
print("daf", "off" if active is None else " ".join(str(active.stats()[name]) for name in names))
"""


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def plain_output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script prints without us."""
    path = tmp_path_factory.mktemp("plain") / "train.py"
    path.write_text(SCRIPT)
    return run(path).stdout


def run(script: pathlib.Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_ALLOCATOR"}
    return subprocess.run(
        [sys.executable, str(script)],
        env={**environment, **variables},
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_unchanged_script_trains_with_its_activations_encoded(script: pathlib.Path) -> None:
    script.write_text(SCRIPT + PROBE)
    result = run(script, PYTORCH_ALLOCATOR="daf", DAF_BUDGET="256MiB", DAF_RATIO="16")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    num_reserves, saved_bytes, raw_bytes = map(int, result.stdout.split("daf ")[1].split())
    assert num_reserves >= 5
    assert raw_bytes >= 9 * 512 * 256 * 4
    assert saved_bytes < raw_bytes / 5


def test_without_the_variable_nothing_is_changed(script: pathlib.Path) -> None:
    script.write_text(SCRIPT + PROBE)
    result = run(script)
    assert result.returncode == 0, result.stderr
    assert "daf off" in result.stdout


def test_an_unreadable_budget_is_one_warning_and_changes_nothing(script: pathlib.Path, plain_output: str) -> None:
    warned = run(script, PYTORCH_ALLOCATOR="daf", DAF_BUDGET="banana")
    assert warned.returncode == 0
    assert warned.stderr.count("banana") == 1
    assert "2GiB" in warned.stderr
    assert warned.stdout == plain_output


def test_another_allocators_name_is_one_warning_and_no_change(script: pathlib.Path, plain_output: str) -> None:
    warned = run(script, PYTORCH_ALLOCATOR="jemalloc")
    assert warned.returncode == 0
    assert warned.stderr.count("PYTORCH_ALLOCATOR=jemalloc") == 1
    assert warned.stdout == plain_output


def test_import_torch_without_the_variable_imports_nothing_heavy_of_ours(script: pathlib.Path) -> None:
    script.write_text(
        "import torch, sys\n"
        "heavy = {'fastapi', 'uvicorn', 'prometheus_client', 'psutil', 'cffi', 'daf.session', 'daf.quant'}\n"
        "print(sorted(heavy & set(sys.modules)), 'daf.autoload' in sys.modules)\n"
    )
    result = run(script)
    assert result.stdout.strip() == "[] True"


def test_lossless_training_gives_the_same_loss_to_the_last_digit(script: pathlib.Path, plain_output: str) -> None:
    assert run(script, PYTORCH_ALLOCATOR="daf", DAF_BITS="lossless").stdout == plain_output != ""
