"""What the accuracy benchmark makes of its runs; the runs themselves are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import __main__ as accuracy
from benchmarks.accuracy.__main__ import Finished, Run, measure

METRICS = {"plain": [80.0, 90.0], "daf-2": [79.0, 88.0], "daf-1": [70.0, 99.0]}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were started, none of which trains."""
    runs: list[Run] = []

    def run_in_process(run: Run) -> dict[str, Any]:
        runs.append(run)
        metric = METRICS[run.method][run.seed]
        return {"metric": metric, "name": "%", "is_better": 1, "saved_ratio": 2.0, "seconds": 1.0}

    monkeypatch.setattr(accuracy, "run_in_process", run_in_process)
    return runs


def test_a_loss_is_against_plain_with_the_same_seeds(started: list[Run]) -> None:
    seeds = {"plain": 2, "daf-2": 2, "daf-1": 1}
    rows = measure(Run("sst2", "plain", 0, "data"), seeds, 1, Finished(""))
    assert [row["loss_against_plain"] for row in rows] == [0.0, 1.5, 10.0]
    assert len(started) == 5


def test_runs_that_have_ended_are_not_run_again(started: list[Run], tmp_path: Path) -> None:
    file, first = str(tmp_path / "runs.jsonl"), Run("sst2", "plain", 0, "data")
    measure(first, {"plain": 2}, 1, Finished(file))
    rows = measure(first, {"plain": 2, "daf-2": 1}, 1, Finished(file))
    assert [(run.method, run.seed) for run in started] == [("plain", 0), ("plain", 1), ("daf-2", 0)]
    assert rows[0]["values"] == METRICS["plain"]


def test_a_run_of_other_steps_is_another_run(started: list[Run], tmp_path: Path) -> None:
    file = str(tmp_path / "runs.jsonl")
    for num_steps in (0, 7):
        measure(Run("sst2", "plain", 0, "data", num_steps=num_steps), {"plain": 1}, 1, Finished(file))
    assert [run.num_steps for run in started] == [0, 7]
