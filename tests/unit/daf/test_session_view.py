"""What a person sees of DAF from Python: names, and a session that shows itself."""

from __future__ import annotations

import inspect
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import daf
from daf.config import Config
from daf.setting_docs import SETTINGS


@pytest.fixture(autouse=True)
def runtime(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "run"))


def test_dir_shows_the_interface_and_nothing_else() -> None:
    assert dir(daf) == sorted(daf.__all__)
    assert all(hasattr(daf, name) for name in daf.__all__)


def test_importing_daf_imports_neither_torch_nor_the_sidecar() -> None:
    code = "import daf, sys; print([name for name in ('torch', 'fastapi', 'click', 'cffi') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_session_shows_itself_before_while_and_after() -> None:
    session = daf.Session(budget="64MiB", cpu_allocator="off")
    assert "not started" in repr(session)
    assert "not started" in session._repr_html_()
    with session:
        assert daf.active() is session
        torch.nn.Linear(64, 64)(torch.randn(512, 64)).sum().backward()
        assert "state open" in repr(session)
        assert "<table>" in session._repr_html_()
    assert daf.active() is None
    assert "state closed" in repr(session)
    assert session.stats()["budget_bytes"] == 64 * 2**20


def test_every_setting_is_a_documented_keyword() -> None:
    names = {name for name, one in inspect.signature(daf.Session).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert names == set(Config.__dataclass_fields__) == set(SETTINGS)
    assert all(re.search(rf"^{name} +\S", inspect.getdoc(daf.Session) or "", re.MULTILINE) for name in names)


def test_the_last_step_is_counted_when_the_session_ends() -> None:
    session = daf.Session(budget="64MiB", cpu_allocator="off")
    with session:
        for _ in range(3):
            torch.nn.Linear(64, 64)(torch.randn(512, 64)).sum().backward()
    assert session.stats()["steps_total"] == 3


def test_a_session_that_was_closed_can_be_opened_again() -> None:
    session = daf.Session(budget="64MiB", cpu_allocator="off")
    for _ in range(2):
        with session:
            assert session.is_open
    assert not session.is_open
