"""Two runs side by side."""

from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner

from daf.cli import main
from daf.cli.runs.compare import compare
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


def test_two_runs_are_asked_for() -> None:
    done = CliRunner().invoke(compare, ["one"])
    assert done.exit_code == 2
    assert "1 are named: one" in done.output


SCRIPT = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(4)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    loss = net(torch.randn(1024, 128)).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.5f}")
"""


@pytest.mark.slow
def test_a_script_is_compared_with_itself_plain_and_under_daf(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--plain", "--budget", "1GiB", "--json", "--html", str(tmp_path / "out.html"), str(tmp_path / "train.py")]
    done = CliRunner().invoke(compare, words, env={"OMP_NUM_THREADS": "1"}, catch_exceptions=False)
    rows = {row["what"]: row for row in json.loads(done.stdout.splitlines()[-1])}
    assert rows["steps"]["first"] == rows["steps"]["second"] == "6"
    loss = rows["last loss that it printed"]
    assert loss["first"] == loss["second"] != ""
    assert rows["parameters"]["first"] == rows["parameters"]["second"]
    assert rows["run"]["first"].startswith("plain")
    assert "<table>" in (tmp_path / "out.html").read_text()
