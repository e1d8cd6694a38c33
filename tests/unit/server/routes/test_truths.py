"""What a new user took for true and found was not, each as a test."""

from __future__ import annotations

import psutil

from daf.server.budget.preview import preview
from tests.unit.server.fakes import RIGHT, FakeEvent, FakePages, FakeSlot, Running

MIB = 1 << 20


def events(running: Running) -> list[dict[str, object]]:
    return running.get("/v1/events").json()["events"]  # type: ignore[no-any-return]


def test_what_is_cleaned_away_is_forgotten_by_the_running_sidecar(running: Running, pages: FakePages) -> None:
    gone, _live = pages.add(pid=1), pages.add(pid=2)
    gone.now_state = "finished"
    assert len(running.get("/v1/processes").json()["processes"]) == 2
    pages.remove(gone)
    answer = running.client.delete("/v1/processes/ended", headers=RIGHT)
    assert answer.json() == {"processes": ["1-7"]}
    assert [one["pid"] for one in running.get("/v1/processes").json()["processes"]] == [2]
    assert events(running)[-1]["what"] == "forgotten"


def test_cleaning_needs_the_token(running: Running) -> None:
    assert running.client.delete("/v1/processes/ended").status_code == 401


def test_events_of_several_processes_come_in_the_order_of_their_times(running: Running, pages: FakePages) -> None:
    for pid in (1, 2):
        pages.add(pid=pid, started_at=10.0).all_events = [FakeEvent(k, time_seconds=100.0 * k + pid) for k in (1, 2, 3)]
    times = [event["time"] for event in events(running)]
    assert times == sorted(times)  # type: ignore[type-var]
    assert len(times) == 8


def test_a_change_is_one_line_though_the_process_tells_it_too(running: Running, pages: FakePages) -> None:
    page = pages.add()
    running.tick()
    happens = [
        FakeEvent(1, "evict", time_seconds=5.0),
        FakeEvent(2, "resize", time_seconds=6.0, num_bytes=64 * MIB),
        FakeEvent(3, "resize", time_seconds=7.0, num_bytes=63 * MIB),
    ]
    page.on_request = lambda: page.all_events.extend(happens)
    assert running.put_budget(64 * MIB).status_code == 200
    found = [event.get("what") or event["kind"] for event in events(running)]
    assert found == ["appeared", "evict", "resize", "budget"]
    by_kind = running.get("/v1/events", kind="resize").json()["events"]
    assert [event["type"] for event in by_kind] == ["arena", "change"], "the change stands for the process's own word"


def test_pausing_is_one_line_too(running: Running, pages: FakePages) -> None:
    page = pages.add()
    running.tick()
    page.all_events = [FakeEvent(1, "pause")]
    running.client.post("/v1/compression", json={"paused": True}, headers=RIGHT)
    assert [event.get("kind") or event["what"] for event in events(running)] == ["appeared", "pause"]


def test_a_preview_is_of_the_step_and_not_of_the_instant() -> None:
    slots = [FakeSlot(1, stored_bytes=400 * MIB, live_bytes=0)]
    instants = [{"resident_bytes": size * MIB, "cached_bytes": (size - 50) * MIB} for size in (100, 600)]
    found = [preview({**instant, "last_step_live_bytes": 500 * MIB}, slots, 300 * MIB) for instant in instants]
    assert found[0] == found[1]
    assert found[0].freed_bytes == 200 * MIB


def test_a_budget_beyond_the_machines_memory_is_questioned(running: Running, pages: FakePages) -> None:
    page = pages.add()
    too_much = psutil.virtual_memory().total + 1
    answer = running.put_budget(too_much)
    assert answer.status_code == 409
    assert "of this machine" in answer.json()["detail"]
    assert page.commands == []
    assert running.put_budget(too_much, force=True).status_code == 200
    assert page.commands == [("budget", too_much)]


def test_a_device_has_other_memory_than_the_machine(running: Running, pages: FakePages) -> None:
    pages.add(device="cuda:0")
    assert running.put_budget(psutil.virtual_memory().total + 1).status_code == 200


def test_a_paused_run_shows_it_and_can_be_resumed(running: Running, pages: FakePages) -> None:
    page = pages.add()
    running.tick()
    for is_paused, what in ((True, "pause"), (False, "resume")):
        answer = running.client.post("/v1/compression", json={"paused": is_paused}, headers=RIGHT)
        assert answer.json()["state"] == "applied"
        page.values["is_paused"] = int(is_paused)
        assert running.get("/v1/budget").json()["processes"][0]["paused"] is is_paused
        assert events(running)[-1]["what"] == what
    assert page.commands == [("pause", 1), ("pause", 0)]
