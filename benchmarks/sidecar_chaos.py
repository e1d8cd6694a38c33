"""kill -9 at random: arenas, sidecars, both; then see whether the rest went on and what is left over."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

from daf.server import Client
from daf.server.launch import running
from daf.server.runfile import is_held
from daf.server.runtime import clean
from daf.server.settings import Settings

ARENA = pathlib.Path(__file__).parents[1] / "tests" / "integration" / "arena_child.py"


class Scene:
    """One sidecar and one arena, each started again whenever it is gone."""

    def __init__(self) -> None:
        self.settings = Settings(pathlib.Path(os.environ["DAF_RUNTIME_DIR"]))
        self.sidecar: subprocess.Popen[str] | None = None
        self.arena: subprocess.Popen[str] | None = None

    def restore(self) -> Client:
        if self.arena is None:
            command = [sys.executable, str(ARENA), str(8 << 20), "20", "0.01"]
            self.arena = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self.arena.stdout is not None
            assert self.arena.stdout.readline() == "ready\n"
        if self.sidecar is None:
            command = [sys.executable, "-m", "daf.server", "--port", "0", "--quiet"]
            with (self.settings.runtime_dir / "sidecar.log").open("a") as log:
                self.sidecar = subprocess.Popen(command, stderr=log, text=True)
        return self._client()

    def _client(self) -> Client:
        assert self.sidecar is not None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            where = running(self.settings)
            if where is not None and where.pid == self.sidecar.pid:
                return Client(where.address)
            time.sleep(0.02)
        log = (self.settings.runtime_dir / "sidecar.log").read_text()
        raise AssertionError(f"the sidecar did not come up: {log[-2000:]}")

    def kill(self, which: str) -> None:
        if which in ("arena", "both") and self.arena is not None:
            self.arena.kill()
            self.arena.wait()
            assert self.arena.stdout is not None
            self.arena.stdout.close()
            self.arena = None
        if which in ("sidecar", "both") and self.sidecar is not None:
            self.sidecar.kill()
            self.sidecar.wait()
            self.sidecar = None


def eventually(check: Any, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            if check():
                return True
        time.sleep(0.02)
    return False


def chaos(num_kills: int = 100, seed: int = 0) -> dict[str, object]:
    """Kill `num_kills` times and count what went wrong."""
    rng, scene = random.Random(seed), Scene()
    went_on = story_served = 0
    client = scene.restore()
    for _ in range(num_kills):
        assert scene.arena is not None
        pid, which = scene.arena.pid, rng.choice(["arena", "sidecar", "both"])
        eventually(lambda c=client, p=pid: c.processes(process=p))
        time.sleep(rng.random() * 0.05)
        scene.kill(which)
        rest_is_well = which == "both" or (which == "arena" and client.get("/healthz")["status"] == "ok")
        rest_is_well = rest_is_well or (which == "sidecar" and scene.arena is not None and scene.arena.poll() is None)
        client = scene.restore()
        went_on += rest_is_well
        story_served += eventually(lambda c=client, p=pid, w=which: is_told(c, p, w))
    scene.kill("both")
    clean(scene.settings.runtime_dir, all_ended=True)
    left = sorted(path.name for path in scene.settings.runtime_dir.iterdir())
    return {
        "kills": num_kills, "rest_went_on": went_on, "story_served": story_served,
        "lock_held_after": is_held(scene.settings.lock_path),
        "left_over": [n for n in left if not n.startswith("sidecar.")],
    }  # fmt: skip


def is_told(client: Client, pid: int, which: str) -> bool:
    """Whether the run's state and figures are served."""
    found = client.processes(process=pid)["processes"][0]
    wanted = "live" if which == "sidecar" else "crashed"
    values = client.get("/v1/stats", process=found["id"])["processes"][0]["values"]
    return bool(found["state"] == wanted and values["budget_bytes"] > 0)
