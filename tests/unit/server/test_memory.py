"""Profiles and modules are other processes' files: what is in them is checked, and becomes trees of bytes."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from daf.server.fleet.history import Series
from daf.server.memory import answer_of, module_tree, read_modules, read_profile, table
from daf.server.routes.perfetto import perfetto_trace
from tests.unit.server.fakes import RIGHT, FakePages, Running

STACK = {"frames": [["/home/me/train.py", 9, "main"], ["/x/torch/nn/modules/linear.py", 3, "forward"]], "op": ""}
PROFILE = {
    "time": 1.0,
    "peak_bytes": 300,
    "stacks": {"1": {**STACK, "module": "Net.a"}, "2": {**STACK, "module": "Net.b", "op": "MulBackward0"}},
    "peak": [[1, 100, 1], [2, 200, 2]],
    "blocks": [],
    "ring": [],
}


def test_a_line_is_the_innermost_of_the_users_own_code() -> None:
    found = answer_of(PROFILE)
    assert found["lines"] == [
        {"file": "/home/me/train.py", "line": 9, "function": "main", "bytes": 300, "blocks": 3},
    ]
    assert found["modules"] == [{"module": "Net.b", "bytes": 200}, {"module": "Net.a", "bytes": 100}]
    main = found["tree"]["children"][0]
    assert (main["name"], main["bytes"]) == ("train.py:9 main", 300)
    assert [child["name"] for child in main["children"][0]["children"]] == ["Net.b", "Net.a"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", json.dumps({**PROFILE, "peak": [[3, 1, 1]]}), json.dumps({**PROFILE, "peak": [[1, "x", 1]]}),
     json.dumps({**PROFILE, "stacks": {"1": {"frames": [[1]], "module": "", "op": ""}}})],
)  # fmt: skip
def test_what_is_no_profile_counts_as_none(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "1-1.profile").write_text(text)
    assert read_profile(tmp_path / "1-1.stats") is None


def test_modules_become_a_tree_by_name_and_kind(tmp_path: pathlib.Path) -> None:
    row = {"parameters": 8, "gradients": 8, "optimizer": 16}
    (tmp_path / "1-1.modules").write_text(json.dumps({"Net.layer.0": row}))
    slots: list[Any] = [SimpleNamespace(name="Net.layer.0@2:1", stored_bytes=10, raw_bytes=40)]
    rows = table(read_modules(tmp_path / "1-1.stats"), slots)
    assert rows == [{"module": "Net.layer.0", **row, "activations": 10, "activations_raw": 40}]
    tree = module_tree(rows)
    assert tree["bytes"] == 42
    (net,) = tree["children"]
    assert net["children"][0]["children"][0]["name"] == "0"


def test_an_odd_modules_file_tells_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "1-1.modules").write_text('{"Net": 3}')
    assert read_modules(tmp_path / "1-1.stats") == {}


def test_without_a_profile_the_answer_says_how_to_get_one(running: Running, pages: FakePages) -> None:
    pages.add()
    answer = running.get("/v1/profile")
    assert answer.status_code == 404
    assert "daf run --profile" in answer.json()["detail"]
    modules = running.get("/v1/modules").json()
    assert modules["has_profile"] is False
    assert running.client.post("/v1/profile").status_code == 401
    assert running.get("/v1/report").json()["profile"] is None
    assert RIGHT


def test_perfetto_gets_counters_by_kind() -> None:
    series = Series(1.0, [5.0], {"tensor_bytes": [100.0], "parameter_bytes": [30.0], "gradient_bytes": [20.0]})
    events = perfetto_trace(1, "net", series, [])["traceEvents"]
    (found,) = (event for event in events if event["name"] == "memory by kind")
    assert found["ts"] == 5e6
    assert {kind: size for kind, size in found["args"].items() if size} == {
        "parameters": 30, "gradients": 20, "temporaries": 50,
    }  # fmt: skip
