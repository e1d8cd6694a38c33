"""A real sidecar process beside real arenas in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from daf.server import Client, SidecarError, ensure_running
from daf.server.process.launch import running
from daf.server.process.runfile import is_held, read_whereabouts
from daf.server.settings import Settings
from tests.integration.sidecar_tools import (
    arena_process,
    client_of,
    end,
    runtime_folder,
    sidecar_process,
    start_sidecar,
    wait_for,
)

DAF = [sys.executable, "-m", "daf.cli"]


def live_pids(client: Client) -> set[int]:
    return {one["pid"] for one in client.processes()["processes"] if one["state"] == "live"}


def test_a_budget_is_changed_from_outside_while_the_arena_steps() -> None:
    with arena_process(8 << 20) as child, sidecar_process() as (_sidecar, client):
        wait_for(lambda: child.pid in live_pids(client))
        answer = client.put_budget("4MiB", pid=child.pid)
        assert answer.state == "applied"
        values = client.get("/v1/stats", process=child.pid)["processes"][0]["values"]
        assert values["budget_bytes"] == 4 << 20
        assert values["resident_bytes"] <= 4 << 20


def test_random_resizes_each_end_with_a_true_outcome() -> None:
    random.seed(7)
    with arena_process(8 << 20, 40, 0.005) as child, sidecar_process() as (_sidecar, client):
        wait_for(lambda: child.pid in live_pids(client))
        for _ in range(60):
            wish = random.randrange(16 << 10, 16 << 20)
            answer = client.put_budget(wish, pid=child.pid, wait=10)
            now = client.get("/v1/budget", process=child.pid)["processes"][0]["budget_bytes"]
            assert answer.state in ("applied", "refused")
            assert (now == wish) == (answer.state == "applied"), answer
        assert child.poll() is None


def test_many_clients_change_at_once_and_no_command_is_lost() -> None:
    with arena_process(8 << 20) as child, sidecar_process() as (_sidecar, client):
        wait_for(lambda: child.pid in live_pids(client))
        states: list[str] = []

        def change(i: int) -> None:
            states.append(client.put_budget((8 << 20) + i * 4096, pid=child.pid, wait=20).state)

        threads = [threading.Thread(target=change, args=(i,)) for i in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert states == ["applied"] * 40


def test_pausing_reaches_the_process() -> None:
    with arena_process() as child, sidecar_process() as (_sidecar, client):
        wait_for(lambda: child.pid in live_pids(client))
        for paused in (True, False):
            assert client.pause(paused, pid=child.pid).state == "applied"
            assert client.get("/v1/budget")["processes"][0]["paused"] == paused


def test_of_many_that_start_a_sidecar_at_once_all_find_the_same() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(ensure_running(port=0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    where = read_whereabouts(Settings(runtime_folder()).address_path)
    assert where is not None
    try:
        assert found == [where.address] * 4
    finally:
        wait_for(is_none_left)


def is_none_left() -> bool:
    """End the sidecar. One that lost the race may be slow to see it, find the winner gone, and have to be ended too."""
    settings = Settings(runtime_folder())
    where = read_whereabouts(settings.address_path)
    if where is not None and is_held(settings.lock_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(where.pid, signal.SIGTERM)
    return not is_held(settings.lock_path)


def test_a_second_sidecar_says_where_the_first_is() -> None:
    with sidecar_process() as (_child, _client):
        second = subprocess.run([*DAF, "serve"], capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert "runs already at http://127.0.0.1:" in second.stderr


def test_a_sidecar_that_nobody_needs_ends_and_leaves_nothing() -> None:
    child = start_sidecar("--idle-exit", "1")
    assert child.wait(30) == 0
    left = {path.name for path in runtime_folder().iterdir()}
    assert left <= {"sidecar.lock", "sidecar.token"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_sidecar_that_is_told_to_end_leaves_nothing_but_its_token(number: signal.Signals) -> None:
    with arena_process(8 << 20) as child, sidecar_process() as (beside, client):
        wait_for(lambda: live_pids(client) == {child.pid})
        beside.send_signal(number)
        beside.wait(30)
        kept = [path.name for path in runtime_folder().iterdir() if path.name.startswith("sidecar.")]
        assert sorted(kept) == ["sidecar.lock", "sidecar.token"]
        assert list(runtime_folder().glob("*.widths")), "what is known of the run stays"


def test_a_killed_run_is_seen_as_crashed_and_its_figures_stay() -> None:
    with sidecar_process() as (_sidecar, client), arena_process() as child:
        wait_for(lambda: child.pid in live_pids(client))
        member = client.processes(process=child.pid)["processes"][0]
        values = {"process": member["id"]}
        wait_for(lambda: client.get("/v1/stats", **values)["processes"][0]["values"]["steps_total"])
        child.kill()
        child.wait()
        state = wait_for(lambda: (s := client.processes(process=member["id"])["processes"][0]["state"]) != "live" and s)
        assert state == "crashed"
        assert client.get("/v1/stats", process=member["id"])["processes"][0]["values"]["steps_total"] > 0
        with pytest.raises(SidecarError, match="has ended"):
            client.put_budget("4MiB", pid=child.pid)


def test_a_restarted_sidecar_knows_the_history_of_the_killed_one() -> None:
    with arena_process() as child:
        first = start_sidecar()
        client = client_of(first)
        query = {"process": child.pid, "seconds": 600}
        wait_for(lambda: live_pids(client) and len(client.get("/v1/history", **query)["times"]) >= 3)
        before = client.get("/v1/history", **query)["times"]
        first.kill()
        first.wait()
        assert running(Settings(runtime_folder())) is None
        with sidecar_process() as (_second, again):
            after = wait_for(lambda: live_pids(again) and again.get("/v1/history", **query)["times"])
            told = before[:-1]  # the last sample may have been on its way to the file
            assert after[: len(told)] == told


@pytest.mark.parametrize("with_sidecar", [True, False])
def test_the_terminal_commands_work_with_a_sidecar_and_without(with_sidecar: bool) -> None:
    def daf(*arguments: str) -> str:
        done = subprocess.run([*DAF, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with arena_process(8 << 20) as child:
        sidecar = start_sidecar() if with_sidecar else None
        if sidecar:
            client_of(sidecar)
        try:
            assert str(child.pid) in daf("ps")
            assert json.loads(daf("ps", "--json"))["processes"][0]["pid"] == child.pid
            assert "applied" in daf("budget", "4MiB", "--pid", str(child.pid))
            assert "4.00 MiB" in daf("budget")
            assert "preview" in daf("budget", "1MiB", "--dry-run")
            wait_for(lambda: "resize" in daf("events", "-n", "500"))  # the sidecar looks once a second
            assert json.loads(daf("export", "trace", "-o", "-"))["traceEvents"]
            assert "forgot 0" in daf("clean")
        finally:
            if sidecar:
                end(sidecar)
