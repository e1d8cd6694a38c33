"""A profiled run tells which lines held memory at the peak: sidecar, torch's memory viewer and Perfetto show it."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import time

import pytest

from daf.server.memory import answer_of, read_profile
from tests.tools import require_tool

MIB = 1 << 20
SCRIPT = """
import os, sys, time, torch
def planted(x):
    big = torch.ones(40 * 2**18)
    return x + big[:1].mean() * 0
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(256, 512), torch.nn.Linear(512, 8)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for i in range(int(sys.argv[1])):
    optimizer.zero_grad()
    planted(net(torch.randn(512, 256))).square().mean().backward()
    optimizer.step()
    time.sleep(float(sys.argv[2]))
"""
PLANTED = 4  # its line


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    require_tool("c++", "g++", "clang++")
    folder = tmp_path_factory.mktemp("profile")
    (folder / "train.py").write_text(SCRIPT)
    runtime = str(folder / "runtime")
    return {**os.environ, "DAF_RUNTIME_DIR": runtime, "OMP_NUM_THREADS": "1", "FOLDER": str(folder)}


def train(environment: dict[str, str], *arguments: str, profiling: str = "on") -> subprocess.Popen[bytes]:
    command = [sys.executable, str(pathlib.Path(environment["FOLDER"]) / "train.py"), *arguments]
    return subprocess.Popen(command, env={**environment, "PYTORCH_ALLOCATOR": "daf", "DAF_PROFILING": profiling})


def daf(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "daf", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


@pytest.fixture(scope="module")
def profiled(environment: dict[str, str]) -> pathlib.Path:
    child = train(environment, "4", "0")
    assert child.wait(120) == 0
    (page,) = pathlib.Path(environment["DAF_RUNTIME_DIR"]).glob(f"{child.pid}-*.stats")
    return page


def test_the_line_of_a_large_temporary_is_found(profiled: pathlib.Path) -> None:
    found = read_profile(profiled)
    assert found is not None
    answer = answer_of(found)
    most = answer["lines"][0]
    assert (most["line"], most["function"]) == (PLANTED, "planted")
    assert most["bytes"] == 40 * MIB
    assert answer["tree"]["bytes"] == answer["peak_bytes"] >= 40 * MIB
    assert any(row["module"].startswith("Net") for row in answer["modules"])
    assert answer["look_share"] < 0.03


def test_backward_is_shown_under_the_line_of_its_forward(profiled: pathlib.Path) -> None:
    found = read_profile(profiled)
    assert found is not None
    backwards = [stack for stack in found["stacks"].values() if stack["op"]]
    assert any(stack["op"].startswith("Addmm") and stack["module"] == "Net.first" for stack in backwards)
    assert all(not frame[0].endswith("engine.py") for stack in backwards for frame in stack["frames"])


def test_the_snapshot_opens_in_torchs_viewer_and_shows_the_line(
    environment: dict[str, str], profiled: pathlib.Path
) -> None:
    from torch.cuda import _memory_viz

    folder = pathlib.Path(environment["FOLDER"])
    pid = profiled.name.partition("-")[0]
    daf(environment, "export", "snapshot", "--pid", pid, "-o", str(folder / "snapshot.pickle"))
    snapshot = pickle.loads((folder / "snapshot.pickle").read_bytes())
    page = _memory_viz.trace_plot(snapshot)
    inside = base64.b64decode(re.search(r"['\"]([A-Za-z0-9+/=]{2000,})['\"]", page)[1])  # type: ignore[index]
    assert b"planted" in inside
    assert _memory_viz.trace(snapshot)
    assert "40.0MiB" in _memory_viz.segsum(snapshot) or "40.0MiB" in _memory_viz.trace(snapshot)
    large = [entry for entry in snapshot["device_traces"][0] if entry["size"] == 40 * MIB]
    actions = {entry["action"] for entry in large}
    assert actions == {"alloc", "free_requested", "free_completed"}
    assert all(frame["line"] == PLANTED for entry in large for frame in entry["frames"] if frame["name"] == "planted")
    live = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["frames"]]
    assert live


def test_perfetto_gets_every_large_tensor(environment: dict[str, str], profiled: pathlib.Path) -> None:
    pid = profiled.name.partition("-")[0]
    trace = json.loads(daf(environment, "export", "trace", "--pid", pid, "-o", "-"))
    counters = [event["args"]["live_bytes"] for event in trace["traceEvents"] if event["name"] == "tensors"]
    assert max(counters) > 40 * MIB > min(counters)


def test_a_profile_can_be_asked_of_a_run_that_has_none(environment: dict[str, str]) -> None:
    from daf.allocator.stats import reader

    child = train(environment, "1000", "0.02", profiling="off")
    try:
        deadline = time.monotonic() + 60
        runtime = pathlib.Path(environment["DAF_RUNTIME_DIR"])
        while not (pages := list(runtime.glob(f"{child.pid}-*.stats"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        page = reader.StatsPage(pages[0])
        page.request_profile()
        while read_profile(pages[0]) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        page.request_profile()
        while time.monotonic() < deadline:
            found = read_profile(pages[0])
            assert found is not None
            if any(line["line"] == PLANTED for line in answer_of(found)["lines"]):
                break
            time.sleep(0.05)
        page.close()
    finally:
        child.kill()
        child.wait()
    assert answer_of(found)["lines"][0]["line"] == PLANTED
