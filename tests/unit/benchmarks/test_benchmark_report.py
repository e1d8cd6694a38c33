"""Reports say on what they were measured, and data that is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.tools import report
from benchmarks.workloads.data import DataFolder, MissingDataError
from benchmarks.workloads.models import build


def test_a_table_is_aligned_and_shows_missing_values_as_a_dash() -> None:
    rows = [{"name": "a", "bytes": 10}, {"name": "longer"}]
    assert report.format_table(rows, {"name": str, "bytes": str}).splitlines() == [
        "name    bytes",
        "------  -----",
        "a          10",
        "longer      -",
    ]


def test_a_json_file_names_machine_versions_and_command(tmp_path: Path) -> None:
    report.write_json(tmp_path / "new" / "rows.json", [{"a": 1}])
    content = json.loads((tmp_path / "new" / "rows.json").read_text())
    assert content["rows"] == [{"a": 1}]
    assert content["versions"]["torch"] == torch.__version__
    assert content["machine"]["cores"] > 0
    assert content["command"].startswith("python -m ")


def test_missing_data_names_the_file_and_the_option(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"sst2/dev.tsv is missing.*--data"):
        DataFolder(tmp_path).sst2("dev")


def test_without_data_batches_are_random_and_the_same_for_the_same_number(tmp_path: Path) -> None:
    workload = build("resnet18", scale=0.125, batch_size=2, data=DataFolder(tmp_path))
    one, again, other = (workload.make_batch(number)["x"] for number in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_same_seed_builds_the_same_weights() -> None:
    first, second = (build("gpt-small", scale=0.25, seed=3).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
