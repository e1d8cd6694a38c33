"""Seconds of benchmarks.soak: threads, random batches and budgets over REST. Minutes of it are the benchmark's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from daf.server import Client
from tests.tools import require_tool


def test_two_models_in_two_threads_train_on_while_their_budget_changes_over_rest() -> None:
    require_tool("c++", "g++", "clang++")
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    finally:
        os.kill(Client.find().get("/healthz")["pid"], signal.SIGTERM)  # the sidecar that it started
    assert done.returncode == 0, done.stderr
    assert "nothing failed" in done.stdout
    assert "applied" in done.stdout
