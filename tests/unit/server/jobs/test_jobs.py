from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from daf.errors import DafError
from daf.server.access.job_token import job_token, signature_of
from daf.server.jobs.peers import Peers
from daf.server.jobs.steering import step_ahead
from daf.server.jobs.targets import TargetFile
from tests.unit.server.fakes import RIGHT, FakePage, FakePages, Running

TOKEN = "the-secret-of-this-job"
MIB = 1 << 20


def add_job(pages: FakePages, num_ranks: int = 2, *, world_size: int = 2) -> list[FakePage]:
    return [pages.add(pid=100 + rank, job_id="night", rank=rank, world_size=world_size) for rank in range(num_ranks)]


def put(running: Running, budget: Any, **query: Any) -> Any:
    running.tick()
    return running.client.put("/v1/jobs/night/budget", json={"budget": budget}, params=query, headers=RIGHT)


def test_the_view_names_the_slowest_the_tightest_and_the_missing(running: Running, pages: FakePages) -> None:
    ranks = add_job(pages, world_size=4)
    ranks[0].values["step_seconds"] = 9.0
    ranks[1].values["resident_bytes"] = 900 << 20
    job = running.get("/v1/jobs/night").json()
    assert (job["num_live"], job["missing"], job["slowest"], job["tightest"]) == (2, [2, 3], 0, 1)
    assert job["skew"]["step_seconds"] == {"min": 0.5, "median": 4.75, "max": 9.0}
    assert [row["rank"] for row in job["ranks"]] == [0, 1]


def test_all_ranks_get_a_budget_or_none(running: Running, pages: FakePages) -> None:
    ranks = add_job(pages)
    answer = put(running, "512MiB")
    assert (answer.status_code, answer.json()["state"]) == (200, "applied")
    assert [rank.values["budget_bytes"] for rank in ranks] == [512 * MIB] * 2


def test_one_that_cannot_keeps_all_from_changing(running: Running, pages: FakePages) -> None:
    ranks = add_job(pages)
    ranks[1].values["held_bytes"] = 600 * MIB
    answer = put(running, "512MiB")
    assert answer.status_code == 409
    assert "rank 1 on here: it holds 600 MiB" in answer.json()["detail"]
    assert [rank.commands for rank in ranks] == [[], []]


def test_one_that_could_not_after_all_sets_the_others_back(running: Running, pages: FakePages) -> None:
    ranks = add_job(pages)
    ranks[1].takes_steps = False
    answer = put(running, "512MiB")
    assert answer.status_code == 409
    assert [rank.values["budget_bytes"] for rank in ranks] == [1 << 30] * 2


def test_a_rank_that_nobody_has_keeps_all_from_changing(running: Running, pages: FakePages) -> None:
    ranks = add_job(pages, world_size=3)
    answer = put(running, "512MiB")
    assert (answer.status_code, ranks[0].commands) == (409, [])
    assert "no host that answers has rank 2" in answer.json()["detail"]


def test_a_dry_run_changes_nothing(running: Running, pages: FakePages) -> None:
    ranks = add_job(pages)
    assert put(running, "50%", dry_run=True).json()["state"] == "preview"
    assert [rank.commands for rank in ranks] == [[], []]


def test_nothing_of_a_job_changes_without_the_token(running: Running, pages: FakePages) -> None:
    ranks = add_job(pages)
    running.tick()
    for path in ("/v1/jobs/night/budget", "/v1/jobs/night/ranks/budget"):
        answer = running.client.put(path, json={"budget": "512MiB", "phase": "schedule", "step": 1})
        assert answer.status_code == 401
    assert [rank.commands for rank in ranks] == [[], []]


def test_a_wrong_method_is_told_the_right_one(running: Running) -> None:
    answer = running.client.request("OPTIONS", "/v1/jobs/night/budget", headers=RIGHT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "PUT")


def test_an_unknown_job_is_said(running: Running) -> None:
    assert running.get("/v1/jobs/nobody").status_code == 404


def test_the_step_is_far_enough_ahead_for_all() -> None:
    assert step_ahead([{"steps": 10, "step_seconds": 0.1}, {"steps": 12, "step_seconds": 1.0}]) == 12 + 30 + 1


def test_only_signed_addresses_are_asked(tmp_path: pathlib.Path) -> None:
    def entry(host: str, *, token: str, job: str = "night") -> dict[str, str]:
        address = f"http://{host}:1"
        return {"host": host, "address": address, "signature": signature_of(token, job, host, address)}

    hosts = [entry("h0", token=TOKEN), entry("evil", token="x" * 20), entry("h1", token=TOKEN, job="other")]
    page = tmp_path / "1-1.stats"
    page.with_suffix(".peers").write_text(json.dumps({"job": "night", "hosts": [*hosts, None, 3]}))
    assert Peers(TOKEN).of("night", [page]) == []  # an entry that makes no sense spoils its file
    page.with_suffix(".peers").write_text(json.dumps({"job": "night", "hosts": hosts}))
    assert [peer.host for peer in Peers(TOKEN).of("night", [page])] == ["h0"]
    assert Peers(TOKEN).of("other", [page]) == []
    page.with_suffix(".peers").write_text("[" * 100_000)
    assert Peers(TOKEN).of("night", [page]) == []


def test_a_job_s_token_is_long_enough(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    assert job_token({"DAF_JOB_TOKEN_FILE": str(path)}) == TOKEN
    assert job_token({}) == ""
    with pytest.raises(DafError, match="has 5 characters"):
        job_token({"DAF_JOB_TOKEN": "short"})


def test_targets_are_what_prometheus_reads(running: Running, pages: FakePages, tmp_path: pathlib.Path) -> None:
    add_job(pages)
    [target] = running.get("/v1/targets").json()
    assert target["targets"] == ["127.0.0.1:8787"]
    assert target["labels"]["__scheme__"] == "http"
    path = tmp_path / "daf.json"
    TargetFile(path).write(running.sidecar)
    assert json.loads(path.read_text()) == [target]
    assert [left.name for left in tmp_path.glob(".*")] == []
