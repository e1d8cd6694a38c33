"""An out-of-memory error tells the truth: its budget holds the whole training, and a file says where the memory is."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from daf.allocator import Arena
from daf.errors import DafOutOfMemoryError
from tests.tools import require_tool

MIB = 1 << 20

TRAIN = """
    import sys
    import torch
    import daf
    budget, depth, width, batch = map(int, sys.argv[1:])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with daf.Session(budget=budget):
        layers = [part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            loss = model(torch.randn(batch, width)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print("trained")
"""


def train(tmp_path: pathlib.Path, budget: int, *shape: int) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", textwrap.dedent(TRAIN), str(budget), *map(str, shape)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)


@pytest.mark.parametrize(
    ("shape", "share"),
    [((3, 512, 64), 0.9), ((6, 256, 2048), 0.5), ((2, 1024, 32), 0.7)],
    ids=["in the optimizer", "in forward", "in backward"],
)
def test_the_named_budget_holds_the_whole_training(
    tmp_path: pathlib.Path, shape: tuple[int, ...], share: float
) -> None:
    require_tool("c++", "g++", "clang++")
    depth, width, _ = shape
    parameter_bytes = depth * width * width * 4
    failed = train(tmp_path, int(parameter_bytes * (1 + 3 * share)), *shape)
    assert failed.returncode != 0, "the budget was meant to be too small"
    assert "OutOfMemoryError" in failed.stderr, failed.stderr
    found = re.search(r"\((\d+) bytes\) would have", failed.stderr)
    assert found is not None

    again = train(tmp_path, int(found[1]), *shape)

    assert again.stdout.endswith("trained\n"), failed.stderr + again.stderr
    assert int(found[1]) < 12 * parameter_bytes + 64 * MIB


def test_the_file_has_breakdown_map_and_last_events() -> None:
    with Arena(MIB, name="small") as arena:
        arena.event("note", text="before the end")
        with pytest.raises(DafOutOfMemoryError) as failure:
            arena.alloc(2 * MIB)
        found = re.search(r"more in (\S+)", str(failure.value))
        assert found is not None
        said = json.loads(pathlib.Path(found[1]).read_text())
        assert pathlib.Path(found[1]).parent == pathlib.Path(arena.page_path).parent
    assert said["asked_bytes"] == 2 * MIB
    assert said["values"]["budget_bytes"] == MIB
    assert said["identity"]["name"] == "small"
    assert [event["text"] for event in said["events"] if event["kind"] == "note"] == ["before the end"]
    assert any(event["kind"] == "oom" for event in said["events"])
    assert said["map"] == []
    assert said["slots"] == []


def test_a_step_is_advised_and_not_a_request() -> None:
    with Arena(MIB, publish=False) as arena:
        arena.free(arena.alloc(MIB - 65536))
        arena.step(0.1)
        block = arena.alloc(2 * 65536)
        with pytest.raises(DafOutOfMemoryError, match=rf"\({MIB + 65536} bytes\) would have"):
            arena.alloc(MIB - 65536)
        arena.free(block)
        arena.free(arena.alloc(MIB - 65536))
        arena.step(0.1)
        arena.set_budget(MIB // 2, force=True)
        with pytest.raises(DafOutOfMemoryError, match=rf"\({MIB - 65536} bytes\) would have"):
            arena.alloc(MIB // 2 + 65536)
