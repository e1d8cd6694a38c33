"""The C files as they lie there."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.tools import require_tool

ROOT = pathlib.Path(__file__).parents[3]
STRICT = ("-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_file_compiles_without_a_warning(compiler: str) -> None:
    sources = [str(path) for path in sorted((ROOT / "kernels").rglob("*.c")) if path.name != "_native.c"]
    command = [require_tool(compiler), *STRICT, f"-I{ROOT / 'kernels'}", *sources]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""
