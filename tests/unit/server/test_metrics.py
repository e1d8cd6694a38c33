from __future__ import annotations

import os
import pathlib
import subprocess

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from daf.server.metrics import EXPORTS, OWN, table
from tests.tools import require_tool
from tests.unit.server.fakes import FakePages, Running

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_documented_table_is_the_code_s() -> None:
    assert DOCS.read_text() == table(), "run: python -m daf.server.metrics > docs/metrics.md"


def test_every_documented_metric_is_exported_with_its_type_and_help(running: Running, pages: FakePages) -> None:
    pages.add(pid=os.getpid())
    families = {family.name: family for family in parse_text(running.get("/metrics").text)}
    for export in EXPORTS:
        family = families[export.name.removesuffix("_total")]
        assert family.type == export.kind
        assert family.documentation == export.help
        assert family.samples, f"{export.name} has no value"
    assert {name for name, _help in OWN} <= set(families)


def test_openmetrics_is_spoken_to_those_who_ask(running: Running, pages: FakePages) -> None:
    pages.add()
    running.tick()
    answer = running.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    units = {family.name: family.unit for family in parse_openmetrics(answer.text)}
    assert units["daf_budget_bytes"] == "bytes"


def test_a_scrape_takes_one_snapshot_of_each_process(running: Running, pages: FakePages) -> None:
    for pid in range(3):
        pages.add(pid=pid)
    running.tick()
    before = [page.num_snapshots for page in pages]
    running.client.get("/metrics")
    assert [page.num_snapshots - n for page, n in zip(pages, before, strict=True)] == [1, 1, 1]


def test_two_runs_of_one_name_are_two_series(running: Running, pages: FakePages) -> None:
    pages.add(pid=1, name="same")
    pages.add(pid=2, name="same")
    text = running.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("daf_budget_bytes{")]
    assert len(set(lines)) == 2


def test_labels_stay_with_the_process_that_has_them(running: Running, pages: FakePages) -> None:
    first = pages.add(pid=1, job_id="night", rank=0)
    second = pages.add(pid=2, job_id="night", rank=0, started_at=2000.0)
    running.tick()
    labels = [running.sidecar.fleet.members[f"{pid}-7"].labels for pid in (1, 2)]
    assert labels[0] == ("run", "night", "here", "0", "cpu")
    assert labels[1] == ("run 2-7", "night", "here", "0", "cpu")
    first.now_state = "crashed"
    running.tick()
    assert running.sidecar.fleet.members["2-7"].labels == labels[1]
    second.now_state = "crashed"


def test_of_a_rank_that_was_started_again_the_living_one_is_shown(running: Running, pages: FakePages) -> None:
    pages.add(pid=1, job_id="night", started_at=1.0).now_state = "crashed"
    running.tick()
    pages.add(pid=2, job_id="night", started_at=2.0)
    text = running.get("/metrics").text
    state = 'daf_process_state{device="cpu",host="here",job="night",rank="0",run="run",state='
    assert f'{state}"live"}} 1.0' in text
    assert text.count(f'{state}"crashed"}}') == 1


def test_of_an_ended_run_only_the_state_and_the_heartbeat_are_told(running: Running, pages: FakePages) -> None:
    page = pages.add(name="gone")
    running.tick()
    page.now_state = "crashed"
    text = running.get("/metrics").text
    assert 'daf_process_state{device="cpu",host="here",job="100-7",rank="0",run="gone",state="crashed"} 1.0' in text
    assert "daf_resident_bytes{" not in text


def test_labels_of_evictions_and_planes_come_from_the_fields(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.values |= {"evictions_tensor_total": 2, "plane_1_bytes": 77, "plane_waste_bytes": 5}
    text = running.get("/metrics").text
    assert 'daf_evictions_total{device="cpu",host="here",job="100-7",rank="0",reason="tensor",run="run"} 2.0' in text
    assert 'daf_plane_position_bytes{device="cpu",host="here",job="100-7",position="1",rank="0",run="run"} 77.0' in text
    assert 'position="waste"' not in text


def test_promtool_has_no_complaint(running: Running, pages: FakePages) -> None:
    promtool = require_tool("promtool")
    pages.add()
    text = running.get("/metrics").text
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
