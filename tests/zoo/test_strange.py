"""A stranger's script prints the same under DAF as without, to the last bit."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.zoo.strange import HEAD, SCRIPTS

ROOT = pathlib.Path(__file__).parents[2]
Outputs = dict[str, str]


def outputs(folder: pathlib.Path, **variables: str) -> Outputs:
    """Run all scripts one after the other in a process of their own; return what each prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DAF_RUNTIME_DIR": str(folder), **variables}
    command = [sys.executable, "-W", "ignore", "-m", "tests.zoo.strange"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    parts = done.stdout.split(HEAD)[1:]
    return dict(part.split("\n", 1) for part in parts)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    return outputs(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=["auto", "lossless"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """With room: `auto`, the default, keeps everything exact then."""
    folder = tmp_path_factory.mktemp("daf")
    return outputs(folder, PYTORCH_ALLOCATOR="daf", DAF_BITS=request.param, DAF_BUDGET="2GiB")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_the_same_with_daf(name: str, plain: Outputs, ours: Outputs) -> None:
    assert plain[name]
    assert ours[name] == plain[name]
