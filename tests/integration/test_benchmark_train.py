"""The training benchmark, end to end, on a model small enough for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KEYS = {"model", "method", "saved_bytes", "peak_bytes", "step_seconds", "grad_rel_error", "grad_cosine"}


@pytest.mark.slow
def test_train_writes_a_row_for_each_method(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = "--model=resnet18 --scale=0.125 --batch-size=8 --methods=plain,checkpoint,gact-2 --steps=2 --warmups=1"
    command = [sys.executable, "-m", "benchmarks.train", *options.split(), "--threads=1", f"--json={file}"]
    subprocess.run(command, check=True, timeout=200)
    rows = {row["method"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["plain", "checkpoint", "gact-2"]
    assert all(row.keys() >= KEYS for row in rows.values())
    assert rows["plain"]["grad_rel_error"] == 0
    assert rows["gact-2"]["saved_bytes"] < rows["checkpoint"]["saved_bytes"] < rows["plain"]["saved_bytes"]
