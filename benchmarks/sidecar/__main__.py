"""What the sidecar costs and how soon it answers.

    python -m benchmarks.sidecar [--only idle,scrape,budget,loss,cost,cost-shared,chaos] [--json FILE]

idle    the sidecar's share of a core and its memory, with nothing to do and with one run beside it
scrape  /metrics over 8 processes with 500 slots each, and with 200 event clients held
budget  PUT /v1/budget while a real model trains: 1,000 random sizes, each outcome checked against the budget in force
loss    a training under a budget that changes all the time, and its loss at the end
cost    step time with the page in a real Chromium and a real Prometheus, against nobody watching (sidecar_cost.py)
chaos   kill -9 of trainings and sidecars at random: does the rest go on, is the story served, is anything left over
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
import random
import signal
import socket
import statistics
import tempfile
import time

import psutil

from benchmarks.sidecar.chaos import chaos
from benchmarks.sidecar.cost import cost_apart, cost_shared
from benchmarks.sidecar.scene import ROOT, TRAINING, drain, quantile, ready, sidecar, wait_live
from benchmarks.tools.report import write_json
from daf.server import Client

ARENA = ROOT / "tests" / "integration" / "arena_child.py"


def share_of_core(beside: psutil.Process, seconds: float) -> float:
    before = sum(beside.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(beside.cpu_times()[:2]) - before) / seconds


def idle(seconds: float = 20.0) -> dict[str, float]:
    with sidecar() as (beside, client):
        time.sleep(2)
        alone = share_of_core(beside, seconds)
        with ready(ARENA, 64 << 20, 100, 0.05):
            wait_live(client, 1)
            with_run = share_of_core(beside, seconds)
        return {"core_alone": alone, "core_with_one_run": with_run, "memory_mb": beside.memory_info().rss / 1e6}


def scrape(num_processes: int = 8, num_slots: int = 500, repeats: int = 30) -> dict[str, float]:
    with contextlib.ExitStack() as stack:
        for _ in range(num_processes):
            stack.enter_context(ready(ARENA, 256 << 20, num_slots, 1.0))
        beside, client = stack.enter_context(sidecar())
        wait_live(client, num_processes)
        alone = timed_scrapes(client, repeats)
        clients = [stack.enter_context(open_stream()) for _ in range(200)]
        time.sleep(2)
        crowded = timed_scrapes(client, repeats)
        core = share_of_core(beside, 5.0)
        held = sum(is_open(one) for one in clients)
        memory = beside.memory_info().rss / 1e6
    return {
        "median_ms": statistics.median(alone) * 1e3,
        "p95_ms": quantile(alone, 0.95) * 1e3,
        "median_ms_with_200_clients": statistics.median(crowded) * 1e3,
        "clients_held": held,
        "core_with_200_clients": core,
        "memory_mb": memory,
    }


def timed_scrapes(client: Client, repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        client.raw("/metrics")
        found.append(time.perf_counter() - began)
        time.sleep(0.05)
    return found


def open_stream() -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(pathlib.Path(os.environ["DAF_RUNTIME_DIR"]) / "sidecar.sock"))
    client.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1 << 20))
    except BlockingIOError:
        return True


def budget(count: int = 1000) -> dict[str, object]:
    rng = random.Random(0)
    states: dict[str, int] = {}
    times, num_untrue, num_over = [], 0, 0
    with ready(TRAINING, 3600, "256MiB") as child, sidecar() as (_beside, client):
        lines = drain(child)
        pid = wait_live(client, 1)[0]["pid"]
        for _ in range(count):
            wish = int(2 ** rng.uniform(20, 28))
            answer = client.put_budget(wish, pid=pid, wait=20)
            outcome = answer.outcomes[0]
            values = client.get("/v1/stats", process=pid)["processes"][0]["values"]
            states[answer.state] = states.get(answer.state, 0) + 1
            num_untrue += (values["budget_bytes"] == wish) != (answer.state == "applied")
            num_over += answer.state == "applied" and values["resident_bytes"] > wish
            if answer.state == "applied":
                times.append(outcome["seconds"])
        is_alive = child.poll() is None
        num_steps = len(lines)
        child.send_signal(signal.SIGTERM)
    return {
        **states, "untrue_outcomes": num_untrue, "resident_over_budget": num_over, "training_went_on": is_alive,
        "steps_meanwhile": num_steps, "median_ms": statistics.median(times) * 1e3,
        "p95_ms": quantile(times, 0.95) * 1e3,
    }  # fmt: skip


def finite_loss(seconds: float = 10.0) -> dict[str, object]:
    """Train for a while under a budget that changes all the time, and look at the loss at the end."""
    rng = random.Random(1)
    with ready(TRAINING, seconds, "64MiB") as child, sidecar() as (_beside, client):
        lines = drain(child)
        pid = wait_live(client, 1)[0]["pid"]
        while not any(line.startswith("loss") for line in lines) and child.poll() is None:
            with contextlib.suppress(Exception):
                client.put_budget(int(2 ** rng.uniform(22, 26)), pid=pid, wait=1)
        child.wait(30)
        time.sleep(0.2)
    loss = float(lines[-1].split()[1])
    return {"final_loss": loss, "is_finite": math.isfinite(loss)}


PARTS = {
    "idle": idle, "scrape": scrape, "budget": budget, "loss": finite_loss, "cost": cost_apart,
    "cost-shared": cost_shared, "chaos": chaos,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sidecar", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="comma separated parts")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["DAF_RUNTIME_DIR"] = folder
            rows.append({"part": name, **PARTS[name]()})
        print("  ".join(shown(key, value) for key, value in rows[-1].items()), flush=True)
    if arguments.json:
        write_json(arguments.json, rows)


def shown(key: str, value: object) -> str:
    if key == "part":
        return f"{value!s:<7}"
    return f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"


if __name__ == "__main__":
    main()
