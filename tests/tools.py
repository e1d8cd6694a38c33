"""Tests that need a tool of the system: skipped with its name on a user's machine, failed in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest


def require_tool(*names: str) -> str:
    """Return the path of the first of `names` that is installed."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    missing = f"needs {' or '.join(names)}, which is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def require_package(name: str, *, extra: str) -> None:
    """Skip, or fail in CI, where a package of an optional extra is not installed."""
    if importlib.util.find_spec(name) is not None:
        return
    missing = f"needs {name}: pip install -e '.[{extra}]'"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
