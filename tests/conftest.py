"""What all tests share: a runtime folder of their own, so that they never meet a real run's stats pages."""

from __future__ import annotations

import pathlib

import pytest


@pytest.fixture(autouse=True)
def _own_runtime_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "daf-runtime"))
