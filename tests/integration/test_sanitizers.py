"""A short run of what `make sanitize` runs for long: codecs, and eight threads on one arena, under the sanitizers."""

from __future__ import annotations

import pathlib
import subprocess

from tests.tools import require_tool

ROOT = pathlib.Path(__file__).parents[2]


def test_codecs_and_eight_threads_are_clean_under_every_sanitizer() -> None:
    require_tool("clang")
    run = subprocess.run([ROOT / "scripts/sanitize", "300", "150"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(" 0 failures") == 3
