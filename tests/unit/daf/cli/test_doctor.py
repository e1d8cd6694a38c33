"""`daf doctor` tries every part, and its exit code says whether one is broken."""

from __future__ import annotations

import pathlib
import socket

import pytest
from click.testing import CliRunner, Result

from daf.cli import checks, main


def doctor() -> Result:
    return CliRunner().invoke(main, ["doctor"])


def found() -> dict[str, checks.Finding]:
    return {finding.name: finding for finding in checks.findings()}


@pytest.fixture(autouse=True)
def _runtime(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "runtime"))


def test_where_all_works_it_ends_with_zero() -> None:
    result = doctor()
    assert result.exit_code == 0, result.output
    for name in ("runtime folder", "shim", "torch's internals", "sidecar", "port"):
        assert f"  {name:<20} " in result.output


def test_a_misspelt_variable_is_broken_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAF_BUGDET", "1GiB")
    result = doctor()
    assert result.exit_code == 1
    assert "did you mean DAF_BUDGET?" in result.output


def test_a_setting_from_a_file_is_shown_with_the_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "daf.toml").write_text('budget = "123MiB"')
    line = next(line for line in doctor().output.splitlines() if line.startswith("  budget"))
    assert "123 MiB" in line
    assert "daf.toml" in line


def test_a_runtime_folder_that_cannot_be_made_is_broken(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "file"))
    assert found()["runtime folder"].state is checks.State.BROKEN


def test_a_shim_that_cannot_be_had_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    from daf.allocator.torch import shim

    def nothing() -> None:
        raise shim.ShimError("no C++ compiler")

    monkeypatch.setattr(shim, "load", nothing)
    assert found()["shim"] == checks.Finding(
        "shim", "torch's CPU tensors stay outside the budget: no C++ compiler", checks.State.BROKEN
    )


def test_a_port_of_another_program_is_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from daf.server import settings

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(settings, "DEFAULT_PORT", other.getsockname()[1])
        assert found()["port"].state is checks.State.NOTE
