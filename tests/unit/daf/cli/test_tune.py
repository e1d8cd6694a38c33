"""`daf tune` stores a profile that this machine's reductions then follow."""

from __future__ import annotations

import pathlib

import pytest
from click.testing import CliRunner

from daf.cli import main
from daf.kernels.reduce import tune
from daf.kernels.reduce.choice import STRATEGIES, Case, stored_profile


@pytest.fixture(autouse=True)
def _small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "shapes", lambda *_sizes: [(1, 1, 4096), (4, 64, 16)])
    monkeypatch.setattr(tune, "LEAST_SECONDS", 0.0)


def test_tune_stores_what_it_measured_and_remove_forgets_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.json"
    monkeypatch.setenv("DAF_PROFILE", str(path))
    result = CliRunner().invoke(main, ["tune", "--quick"])
    assert result.exit_code == 0, result.output
    assert f"{path}" in result.output
    profile = stored_profile()
    assert profile is not None
    assert profile.strategy(Case.of(numel=4096, channels=1, num_threads=1)) in STRATEGIES
    assert CliRunner().invoke(main, ["tune", "--remove"]).exit_code == 0
    assert stored_profile() is None


def test_tune_writes_where_it_is_told(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "deep" / "mine.json"
    assert CliRunner().invoke(main, ["tune", "--quick", "--out", str(path)]).exit_code == 0
    assert path.exists()
