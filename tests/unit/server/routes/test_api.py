from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.fakes import RIGHT, FakeEvent, FakePages, Running


def test_health_is_told_without_any_process(running: Running) -> None:
    answer = running.get("/healthz")
    assert answer.status_code == 200
    assert answer.json()["live"] == 0


def test_ranks_of_one_job_are_shown_under_it(running: Running, pages: FakePages) -> None:
    pages.add(pid=1, job_id="job", rank=0, world_size=2)
    pages.add(pid=2, job_id="job", rank=1, world_size=2)
    pages.add(pid=3, name="alone")
    found = running.get("/v1/processes").json()
    jobs = {job["id"]: job["processes"] for job in found["jobs"]}
    assert jobs == {"job": ["1-7", "2-7"], "3-7": ["3-7"]}


def test_stats_hold_the_page_s_values_and_the_ratios(running: Running, pages: FakePages) -> None:
    pages.add()
    found = running.get("/v1/stats").json()["processes"][0]
    assert found["values"]["resident_bytes"] == 600 << 20
    assert found["derived"]["compression_ratio"] == 8.0


def test_before_the_first_whole_step_the_ratio_is_that_of_the_peaks(running: Running, pages: FakePages) -> None:
    pages.add().values |= {"last_step_saved_bytes": 0, "peak_saved_bytes": 10, "peak_saved_raw_bytes": 50}
    assert running.get("/v1/stats").json()["processes"][0]["derived"]["compression_ratio"] == 5.0


def test_a_budget_is_changed_and_the_outcome_told(running: Running, pages: FakePages) -> None:
    page = pages.add()
    answer = running.put_budget("512MiB")
    assert answer.status_code == 200
    assert answer.json()["state"] == "applied"
    assert page.commands == [("budget", 512 << 20)]


def test_asking_for_the_present_budget_sends_no_command(running: Running, pages: FakePages) -> None:
    page = pages.add()
    for wish in ("512MiB", 512 << 20, float(512 << 20)):
        assert running.put_budget(wish).json()["state"] == "applied"
    assert len(page.commands) == 1


def test_a_percentage_means_the_same_however_often_it_is_asked_for(running: Running, pages: FakePages) -> None:
    page = pages.add()
    for _ in range(3):
        running.put_budget("50%")
    assert page.values["budget_bytes"] == 512 << 20


def test_a_refused_budget_says_why_and_what_would_do(running: Running, pages: FakePages) -> None:
    pages.add()
    answer = running.put_budget("4KiB")
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    outcome = answer.json()["outcomes"][0]
    assert outcome["state"] == "refused"
    assert outcome["least_bytes"] == 1 << 20
    assert "tensors alone" in answer.json()["detail"]


def test_a_process_that_does_not_answer_leaves_the_change_pending(running: Running, pages: FakePages) -> None:
    pages.add().answers = False
    answer = running.put_budget("512MiB", wait=0.05)
    assert answer.status_code == 202
    assert answer.json()["outcomes"][0]["state"] == "pending"


def test_a_dry_run_names_what_would_go_and_changes_nothing(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.values["cached_bytes"] = 1000
    answer = running.put_budget((600 << 20) - 1500, dry_run=True).json()
    preview = answer["outcomes"][0]["preview"]
    assert answer["state"] == "preview"
    assert preview["freed_bytes"] == 1500
    assert preview["cached_bytes"] == 1000
    assert [slot["name"] for slot in preview["slots"]] == ["a"], "the less important slot goes first"
    assert page.commands == []


def test_a_job_wide_change_reaches_every_rank(running: Running, pages: FakePages) -> None:
    ranks = [pages.add(pid=pid, job_id="job", rank=pid, world_size=2) for pid in (1, 2)]
    assert len(running.put_budget("256MiB", job="job").json()["outcomes"]) == 2
    assert [rank.values["budget_bytes"] for rank in ranks] == [256 << 20] * 2


def test_a_rank_that_cannot_be_reached_does_not_hide_what_the_others_did(running: Running, pages: FakePages) -> None:
    def gone() -> None:
        raise FileNotFoundError("no command page")

    pages.add(pid=1, job_id="job", rank=0, world_size=2).on_request = gone
    other = pages.add(pid=2, job_id="job", rank=1, world_size=2)
    answer = running.put_budget("256MiB", job="job")
    assert answer.status_code == 409
    assert [one["state"] for one in answer.json()["outcomes"]] == ["refused", "applied"]
    assert "no command page" in answer.json()["detail"]
    assert other.values["budget_bytes"] == 256 << 20
    assert len(running.sidecar.settings.audit_path.read_text().splitlines()) == 2


def test_a_rank_that_refuses_does_not_hide_what_the_others_did(running: Running, pages: FakePages) -> None:
    pages.add(pid=1, job_id="job", rank=0, world_size=2).least_bytes = 512 << 20
    pages.add(pid=2, job_id="job", rank=1, world_size=2)
    answer = running.put_budget("256MiB", job="job")
    assert answer.status_code == 409
    assert [one["state"] for one in answer.json()["outcomes"]] == ["refused", "applied"]
    assert "tensors alone" in answer.json()["detail"]


def test_a_change_is_never_sent_to_two_jobs_by_accident(running: Running, pages: FakePages) -> None:
    pages.add(pid=1)
    pages.add(pid=2)
    answer = running.put_budget("256MiB")
    assert answer.status_code == 409
    assert answer.json()["type"].endswith("ambiguous")


@pytest.mark.parametrize("wish", ["banana", "-1", "", 0, -5, 1.5, None, True, [], "1e9", "9" * 30])
def test_what_is_no_size_is_refused_with_a_problem(running: Running, pages: FakePages, wish: Any) -> None:
    page = pages.add()
    answer = running.put_budget(wish)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert page.commands == []


def test_what_is_no_size_is_quoted_with_what_would_be_right(running: Running, pages: FakePages) -> None:
    pages.add()
    assert running.put_budget("banana").json()["detail"] == (
        "body.budget: 'banana' is not a size such as 2GiB, 512MB, 1073741824 or 50%"
    )


def test_a_dry_run_looks_at_the_peak_of_the_step_and_not_at_its_valley(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.values |= {"last_step_live_bytes": 600 << 20, "tensor_bytes": 100 << 20, "cached_bytes": 500 << 20}
    for slot in page.slots:
        slot.stored_bytes = 200 << 20
    preview = running.put_budget("500MiB", dry_run=True).json()["outcomes"][0]["preview"]
    assert preview["cached_bytes"] == 0
    assert preview["evicted_bytes"] == 100 << 20


def test_a_dry_run_says_what_the_process_would_refuse(running: Running, pages: FakePages) -> None:
    pages.add().values["last_step_held_bytes"] = 500 << 20
    outcome = running.put_budget("400MiB", dry_run=True).json()["outcomes"][0]
    assert outcome["preview"]["short_bytes"] == 100 << 20
    assert outcome["least_bytes"] == 500 << 20
    assert running.get("/v1/budget").json()["processes"][0]["least_bytes"] == 500 << 20


@pytest.mark.parametrize("wish", ["0%", "0.0GiB", "999999999999999999TiB"])
def test_a_size_that_no_budget_can_have_is_refused(running: Running, pages: FakePages, wish: str) -> None:
    pages.add()
    answer = running.put_budget(wish)
    assert answer.status_code == 409
    assert answer.json()["type"].endswith("out-of-range")


def test_a_wrong_method_is_told_all_the_right_ones(running: Running) -> None:
    answer = running.client.delete("/v1/budget", headers=RIGHT)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, PUT"


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/v1/stats", "/v1/stream", "/page/app.js"])
def test_head_answers_as_get_does_without_a_body(running: Running, path: str) -> None:
    answer = running.client.head(path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_that_does_not_say_it_is_json_is_told_to(running: Running, pages: FakePages) -> None:
    page = pages.add()
    running.tick()
    for kind in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = running.client.put("/v1/budget", content=b'{"budget": "1GiB"}', headers={**RIGHT, **kind})
        assert answer.status_code == 422
        assert "Content-Type: application/json" in answer.json()["detail"]
    assert page.commands == []


def test_compression_is_paused_and_resumed(running: Running, pages: FakePages) -> None:
    page = pages.add()
    running.tick()
    for paused in (True, False):
        answer = running.client.post("/v1/compression", json={"paused": paused}, headers=RIGHT)
        assert answer.status_code == 200
    assert page.commands == [("pause", 1), ("pause", 0)]


def test_every_change_leaves_a_line(running: Running, pages: FakePages) -> None:
    pages.add()
    running.put_budget("512MiB")
    running.put_budget("4KiB")
    lines = running.sidecar.settings.audit_path.read_text().splitlines()
    assert len(lines) == 2
    assert '"refused"' in lines[1]
    assert running.sidecar.settings.audit_path.stat().st_mode & 0o777 == 0o600


def test_a_change_is_told_though_its_line_cannot_be_written(
    running: Running, pages: FakePages, caplog: pytest.LogCaptureFixture
) -> None:
    pages.add()
    running.sidecar.settings.audit_path.mkdir()
    assert running.put_budget("512MiB").status_code == 200
    assert "the audit line cannot be written" in caplog.text


def test_a_killed_run_s_last_figures_are_still_served(running: Running, pages: FakePages) -> None:
    page = pages.add()
    running.tick()
    page.now_state = "crashed"
    page.broken = OSError("gone")
    found = running.get("/v1/stats").json()["processes"][0]
    assert found["state"] == "crashed"
    assert found["values"]["resident_bytes"] == 600 << 20
    assert running.get("/v1/history").json()["series"]["resident_bytes"]


def test_what_a_run_did_last_is_told_though_its_end_was_seen_by_a_question(running: Running, pages: FakePages) -> None:
    page = pages.add()
    running.tick()
    page.all_events = [FakeEvent(1, kind="oom")]
    page.now_state = "crashed"
    running.client.get("/v1/processes")
    running.tick()
    found = running.client.get("/v1/events").json()["events"]
    assert [event.get("kind") or event["what"] for event in found] == ["appeared", "oom", "crashed"]


def test_an_unreadable_page_does_not_hide_the_others(running: Running, pages: FakePages) -> None:
    pages.add(pid=1).broken = ValueError("not a stats page")
    pages.add(pid=2)
    assert [one["process"] for one in running.get("/v1/stats").json()["processes"]] == ["2-7"]
    errors = {one["id"]: one["error"] for one in running.get("/v1/processes").json()["processes"]}
    assert "not a stats page" in errors["1-7"]


@pytest.mark.parametrize("path", ["/v1/slots", "/v1/map", "/v1/widths", "/v1/fields", "/v1/history"])
def test_questions_about_one_process_find_the_only_one(running: Running, pages: FakePages, path: str) -> None:
    pages.add()
    assert running.get(path).json()["process"] == "100-7"
    pages.add(pid=2)
    assert running.get(path).status_code == 409
    assert running.get(path, process="2").json()["process"] == "2-7"
    assert running.get(path, process="99").status_code == 404


def test_the_page_and_its_files_are_served(running: Running) -> None:
    answer = running.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert running.get("/page/nothing.js").status_code == 404
    assert running.get("/page/..%2f__init__.py").status_code == 404


def test_everyday_events_stay_out_of_the_stream_and_losses_are_told_now_and_then(
    running: Running, pages: FakePages
) -> None:
    page = pages.add()
    page.all_events = [FakeEvent(1, kind="alloc"), FakeEvent(2, kind="resize"), FakeEvent(3, kind="free")]
    page.num_lost = 5
    for _ in range(3):
        running.tick()
    found = running.get("/v1/events").json()["events"]
    assert [event.get("kind") or event["type"] for event in found] == ["process", "lost", "resize"]
    assert found[1]["count"] == 5


def test_a_process_that_ends_while_a_change_waits_is_told_at_once(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.answers = False
    page.on_request = lambda: setattr(page, "now_state", "crashed")
    answer = running.put_budget("512MiB", wait=30)
    assert answer.status_code == 409
    assert "has ended" in answer.json()["detail"]


def test_a_budget_that_is_not_reached_yet_is_asked_for_again(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.values |= {"budget_bytes": 512 << 20, "pending_budget_bytes": 512 << 20}
    running.put_budget("512MiB")
    assert len(page.commands) == 1
