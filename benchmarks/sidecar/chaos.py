"""kill -9 at random: trainings, sidecars, both; then see whether the rest went on and what is left over.

Several real trainings (torch, DAF's engine and arena) run beside one sidecar. Whoever is killed is started again in the
background, so that there is always something to kill and something that has to go on. Trainings are forked from a
server that has imported torch, for that takes seconds; all else is their own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from daf.server import Client
from daf.server.fleet.pages import clean
from daf.server.process.launch import running
from daf.server.process.runfile import is_held
from daf.server.settings import Settings

PAUSE_SECONDS = 0.05  # after each step: many trainings and a sidecar share a small machine


def train(runtime_dir: str) -> None:
    """The training: steps until it is killed."""
    os.environ["DAF_RUNTIME_DIR"] = runtime_dir
    from benchmarks.sidecar.child import main

    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (until the end)
    main(3600.0, "16MiB", PAUSE_SECONDS)


class Scene:
    """One sidecar and some trainings, each started again when it is gone."""

    def __init__(self, num_trainings: int) -> None:
        self.settings = Settings(pathlib.Path(os.environ["DAF_RUNTIME_DIR"]))
        self.num_trainings = num_trainings
        self.trainings: dict[int, BaseProcess] = {}
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["__main__", "torch", "benchmarks.sidecar.child"])
        self.sidecar: subprocess.Popen[bytes] | None = None

    def restore(self) -> Client:
        """Start what is missing. Nobody waits here until a new training has come up."""
        for _ in range(self.num_trainings - len(self.trainings)):
            child = self._forks.Process(target=train, args=(str(self.settings.runtime_dir),), daemon=True)
            child.start()
            assert child.pid is not None
            self.trainings[child.pid] = child
        if self.sidecar is None:
            command = [sys.executable, "-m", "daf.server", "--port", "0", "--quiet", "--unlimited-rate"]
            with self._log.open("a") as log:
                self.sidecar = subprocess.Popen(command, stderr=log)
        return self._client()

    @property
    def _log(self) -> pathlib.Path:
        return self.settings.runtime_dir / "sidecar.log"

    def _client(self) -> Client:
        assert self.sidecar is not None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            where = running(self.settings)
            if where is not None and where.pid == self.sidecar.pid:
                return Client(where.address)
            time.sleep(0.02)
        raise AssertionError(f"the sidecar did not come up: {self._log.read_text()[-2000:]}")

    def kill(self, training: int | None, is_sidecar: bool) -> None:
        if training is not None:
            child = self.trainings.pop(training)
            child.kill()
            child.join()
        if is_sidecar and self.sidecar is not None:
            self.sidecar.kill()
            self.sidecar.wait()
            self.sidecar = None

    def end(self) -> None:
        for pid in list(self.trainings):
            self.kill(pid, is_sidecar=False)
        self.kill(None, is_sidecar=True)


def chaos(num_kills: int = 100, seed: int = 0, num_trainings: int = 3) -> dict[str, object]:
    """Kill `num_kills` times and count what came of it."""
    rng, scene, seen = random.Random(seed), Scene(num_trainings), Counter[str]()
    try:
        client = scene.restore()
        for number in range(1, num_kills + 1):
            client = kill_once(scene, client, rng, seen)
            if number % 10 == 0:
                print(f"{number} kills: {seen['went on']} went on, {seen['told']} told", file=sys.stderr, flush=True)
    finally:
        scene.end()
    clean(scene.settings.runtime_dir, all_ended=True)
    left = sorted(path.name for path in scene.settings.runtime_dir.iterdir())
    return {
        "kills": num_kills, **{f"of_{which}": seen[which] for which in ("training", "sidecar", "both")},
        "rest_went_on": seen["went on"], "story_served": seen["told"],
        "lock_held_after": is_held(scene.settings.lock_path),
        "left_over": [name for name in left if not name.startswith("sidecar.")],
    }  # fmt: skip


def kill_once(scene: Scene, client: Client, rng: random.Random, seen: Counter[str]) -> Client:
    """Kill somebody at a moment of no choice, and see what the others do."""
    which = rng.choice(["training", "sidecar", "both"])
    others = eventually(lambda: enough(stepping(client)), 120)
    pid = rng.choice(sorted(others)) if which != "sidecar" else None
    steps_before = others.pop(pid, 0) if pid is not None else 0
    time.sleep(rng.random() * 0.1)
    scene.kill(pid, is_sidecar=which != "training")
    seen[which] += 1
    is_well = which != "training" or client.get("/healthz")["status"] == "ok"
    client = scene.restore()
    is_well = is_well and eventually(lambda: all(stepping(client).get(p, 0) > n + 1 for p, n in others.items()))
    seen["went on"] += bool(is_well)
    killed = {pid: steps_before} if pid is not None else {}
    seen["told"] += eventually(lambda: all(is_told(client, p, "crashed", n) for p, n in killed.items())) and eventually(
        lambda: all(is_told(client, p, "live", n) for p, n in others.items())
    )
    return client


def stepping(client: Client) -> dict[int, int]:
    """Steps of each live training that has begun to train, by pid."""
    found = {one["id"]: one["pid"] for one in client.processes()["processes"] if one["state"] == "live"}
    figures = client.get("/v1/stats")["processes"]
    steps = {found[one["process"]]: int(one["values"]["steps_total"]) for one in figures if one["process"] in found}
    return {pid: count for pid, count in steps.items() if count > 0}


def enough(found: dict[int, int]) -> dict[int, int] | None:
    return found if len(found) > 1 else None


def is_told(client: Client, pid: int, state: str, least_steps: int) -> bool:
    """Whether the run's state is served, and its figures are those of a training that came so far."""
    (found,) = client.processes(process=pid)["processes"]
    values = client.get("/v1/stats", process=found["id"])["processes"][0]["values"]
    slots = client.get("/v1/slots", process=found["id"])["slots"]
    return bool(found["state"] == state and values["steps_total"] >= least_steps and slots)


def eventually(check: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return the first true answer; False after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            found = check()
            if found:
                return found
        time.sleep(0.02)
    return False
