from __future__ import annotations

import json
import pathlib
import pickle
import subprocess
import sys

from tests.unit.server.fakes import FakeEvent, FakePages, Running


def test_the_snapshot_accounts_for_every_byte_the_map_shows(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.values["plane_bytes"] = 2500
    snapshot = pickle.loads(running.get("/v1/snapshot").content)
    *tensor, plane = snapshot["segments"]
    assert len(tensor) == 2, "a gap without memory parts two segments"
    assert sum(segment["total_size"] for segment in tensor) == (3 * 2**20 * 3 + 2**20) // 4
    assert plane["total_size"] == 2500
    names = [block["frames"][0]["name"] for block in plane["blocks"]]
    assert names[0].startswith("a (linear")


def test_torch_s_own_memory_viewer_accepts_the_snapshot(
    running: Running, pages: FakePages, tmp_path: pathlib.Path
) -> None:
    page = pages.add()
    page.all_events = [FakeEvent(1, kind="oom")]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(running.get("/v1/snapshot").content)
    script = """
import runpy, sys
path, folder = sys.argv[1:]
plots = ["trace_plot", "-o", folder + "/t.html"], ["segment_plot", "-o", folder + "/s.html"]
for command, *options in (["stats"], ["trace"], *plots):
    sys.argv = ["_memory_viz", command, path, *options]
    runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
"""
    command = [sys.executable, "-c", script, str(path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "OutOfMemoryError" in done.stdout
    for name in ("t.html", "s.html"):
        assert "snapshot.pickle" in (tmp_path / name).read_text()


def test_the_trace_has_counters_and_a_mark_for_each_eviction(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.all_events = [FakeEvent(1), FakeEvent(2)]
    found = running.get("/v1/trace").json()["traceEvents"]
    assert {event["name"] for event in found if event["ph"] == "C"} >= {"memory", "budget", "fragmentation"}
    assert sum(event["ph"] == "i" and event["name"] == "evict" for event in found) == 2
    assert all("ts" in event for event in found if event["ph"] != "M")


def test_the_report_holds_what_the_routes_say(running: Running, pages: FakePages) -> None:
    pages.add()
    report = running.get("/v1/report").json()
    assert report["process"] == running.get("/v1/processes").json()["processes"][0]
    assert report["stats"]["values"] == running.get("/v1/stats").json()["processes"][0]["values"]
    assert report["slots"] == running.get("/v1/slots").json()["slots"]
    assert report["map"] == running.get("/v1/map").json()["map"]
    json.dumps(report, allow_nan=False)
