"""How a run ended is told in words, whatever ended it, and its steps are counted to the last."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

NUM_STEPS = 3
SCRIPT = f"""
import os, signal, sys, time, torch
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range({NUM_STEPS}):
    optimizer.zero_grad()
    net(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
"""
ENDS = {
    "": "finished",
    "raise ValueError('no such file')": "failed: ValueError: no such file",
    "raise torch.OutOfMemoryError('too much')": "out of memory: OutOfMemoryError: too much",
    "sys.exit(3)": "failed: exit code 3",
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)": "interrupted",
    "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)": "terminated: SIGTERM",
    "os.kill(os.getpid(), signal.SIGKILL)": "killed",
}


def listed(environment: dict[str, str]) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "daf", "ps", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["processes"]  # type: ignore[no-any-return]


def test_the_list_of_runs_says_how_each_ended(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "DAF_RUNTIME_DIR": str(tmp_path / "runtime"), "OMP_NUM_THREADS": "1"}
    for end in ENDS:
        command = [sys.executable, "-c", SCRIPT + end]
        subprocess.run(command, env={**environment, "PYTORCH_ALLOCATOR": "daf"}, capture_output=True, check=False)
    found = sorted(listed(environment), key=lambda one: str(one["started_at"]))
    assert [one["ending"]["text"] for one in found] == list(ENDS.values())  # type: ignore[index]
    troubles = {"failed", "out of memory", "killed"}
    for one in found:
        assert one["state"] == ("crashed" if one["ending"]["how"] in troubles else "finished")  # type: ignore[index]


@pytest.mark.parametrize("num_steps", [1, NUM_STEPS])
def test_all_steps_are_counted_the_last_one_too(num_steps: int) -> None:
    script = f"""
import torch, daf
net = torch.nn.Linear(64, 8)
with daf.Session(budget="64MiB", sidecar="off") as session:
    for _ in range({num_steps}):
        net(torch.randn(32, 64)).square().mean().backward()
    arena = session.arena
    session.engine.remove()
    print(arena.stats()["steps_total"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(num_steps)]
