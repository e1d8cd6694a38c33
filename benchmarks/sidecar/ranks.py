"""What one sidecar costs that watches many ranks: `python -m benchmarks.sidecar.ranks [--ranks 1000]`.

The ranks are copies of one live page, each with a rank of its own. Only this machine's loopback is used.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import psutil

JOB = "many"
SLOTS = 50
NUM_TRIES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="daf-ranks-", dir="/dev/shm") as folder:
        os.environ["DAF_RUNTIME_DIR"] = str(pathlib.Path(folder) / "runtime")
        print(json.dumps(measured(arguments.ranks), indent=2))


def measured(num_ranks: int) -> dict[str, float]:
    from daf.allocator import Arena
    from daf.server import Client

    with Arena(64 << 20, name="rank") as arena:
        for slot in range(SLOTS):
            arena.slot(slot, name=f"layer {slot}", op="mm", codec="meansplit", bits=4.0)
        arena.step(0.5)
        arena.flush()
        copy_page(pathlib.Path(arena.page_path), num_ranks)
        command = [sys.executable, "-P", "-m", "daf.server", "--port", "0", "--quiet", "--unlimited-rate"]
        sidecar = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            return look(Client.find(), psutil.Process(sidecar.pid), num_ranks)
        finally:
            sidecar.terminate()
            sidecar.wait()


def copy_page(page: pathlib.Path, num_ranks: int) -> None:
    """Write pages that differ in job and rank. They are sparse: what is zero takes no memory."""
    content = page.read_bytes()
    start = content.index(b'{"name"')
    length = content.index(b"\0", start) - start
    said = json.loads(content[start : start + length])
    for rank in range(num_ranks):
        text = json.dumps({**said, "job_id": JOB, "rank": rank, "world_size": num_ranks, "argv": []}).encode()
        changed = content[:start] + text.ljust(length, b"\0") + content[start + length :]
        with page.with_name(f"{900_000_000 + rank}-1.stats").open("wb") as file:
            for at in re.finditer(rb"(?s).{1,4096}", changed):
                if at[0].strip(b"\0"):
                    file.seek(at.start())
                    file.write(at[0])
            file.truncate(len(changed))


def look(client: object, process: psutil.Process, num_ranks: int) -> dict[str, float]:
    from daf.server import Client

    assert isinstance(client, Client)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(1.0)
        if not client.is_direct and client.job(JOB)["num_live"] == num_ranks:
            break
    found: dict[str, float] = {"ranks": num_ranks}
    for name, path in (("scrape", "/metrics"), ("job", f"/v1/jobs/{JOB}"), ("stats", "/v1/stats"), ("page", "/")):
        seconds, cpu = [], sum(process.cpu_times()[:2])
        for _ in range(NUM_TRIES):
            began = time.perf_counter()
            size = len(client.raw(path))
            seconds.append(time.perf_counter() - began)
        found[f"{name}_processor_seconds"] = round((sum(process.cpu_times()[:2]) - cpu) / NUM_TRIES, 3)
        found |= {f"{name}_seconds": round(sorted(seconds)[NUM_TRIES // 2], 3), f"{name}_bytes": size}
    before, wall = sum(process.cpu_times()[:2]), time.perf_counter()
    time.sleep(10)
    found["busy_ratio"] = round((sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - wall), 3)
    found["resident_mib"] = round(process.memory_info().rss / 2**20, 1)
    found["descriptors"] = process.num_fds()
    return found


if __name__ == "__main__":
    main()
