"""Two runs side by side."""

from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner

from daf.cli import main
from tests.unit.server.fakes import FakePages, Running

MIB = 1 << 20


def written(running: Running, folder: pathlib.Path, pid: int) -> str:
    """The run of `pid`, as `daf export json` writes it."""
    path = folder / f"{pid}.json"
    path.write_text(running.get("/v1/report", process=pid).text)
    return str(path)


@pytest.fixture
def two(running: Running, pages: FakePages, tmp_path: pathlib.Path) -> list[str]:
    pages.add(pid=1, name="plain").values |= {"peak_resident_bytes": 400 * MIB, "parameter_bytes": 20 * MIB}
    pages.add(pid=2, name="<b>daf</b>").values |= {"peak_resident_bytes": 100 * MIB, "parameter_bytes": 20 * MIB}
    return [written(running, tmp_path, pid) for pid in (1, 2)]


def test_two_recordings_are_set_side_by_side(two: list[str]) -> None:
    rows = {row["what"]: row for row in json.loads(CliRunner().invoke(main, ["compare", *two, "--json"]).output)}
    assert rows["peak resident"] == {"what": "peak resident", "first": "400 MiB", "second": "100 MiB", "ratio": "0.25"}
    assert rows["parameters"]["ratio"] == "1.00"
    assert rows["run"]["first"] == "plain 1-7"
    assert "gradients" not in rows, "what neither has is not shown"


def test_the_page_of_two_runs_takes_names_for_text(two: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "two.html"
    result = CliRunner().invoke(main, ["compare", *two, "--html", str(path)])
    assert result.exit_code == 0, result.output
    assert "&lt;b&gt;daf&lt;/b&gt;" in path.read_text()
    assert "peak resident" in result.output


@pytest.mark.parametrize("content", ["banana", "[]", "{}"])
def test_a_file_of_another_kind_is_refused_in_one_line(tmp_path: pathlib.Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    result = CliRunner().invoke(main, ["compare", str(path), str(path)])
    assert result.exit_code == 1
    assert "daf export json" in result.output
