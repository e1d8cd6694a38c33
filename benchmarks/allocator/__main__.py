"""Training under torch's CPU allocator: glibc, jemalloc, tcmalloc, mimalloc and DAF, compression off.

    python -m benchmarks.allocator [--json FILE] [--models resnet18,minilm] [--steps 12]

Each allocator has a process of its own, all five of a model alive at once, and they take turns, step by step: what
else the machine does meets them all alike. The order changes every round. Columns:

| column | meaning |
|---|---|
| peak_bytes | highest resident size less that after the imports, before the model is built |
| step_seconds | median of the steps after the warm-up |
| faults_per_step | page faults of the median step after the warm-up |
"""

from __future__ import annotations

import argparse
import ctypes.util
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from typing import IO

from benchmarks.allocator import child
from benchmarks.tools.report import write_json
from daf.sizes import format_bytes

PEERS = {"glibc": "", "jemalloc": "jemalloc", "tcmalloc": "tcmalloc_minimal", "mimalloc": "mimalloc"}
MODELS = {"resnet18": {"batch_size": 64}, "minilm": {"batch_size": 32, "seq_len": 64}}
NUM_WARMUP_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    model: str
    allocator: str
    peak_bytes: int
    step_seconds: float
    faults_per_step: float
    spread_seconds: float  # half the distance between the quartiles of the steps


class Contestant:
    """One training process that does one step whenever it is told to."""

    def __init__(self, model: str, allocator: str) -> None:
        self.model, self.allocator = model, allocator
        self.seconds: list[float] = []
        self.faults: list[int] = []
        self.peak_bytes = 0
        env = os.environ | {"HF_HUB_OFFLINE": "1"}
        library = PEERS.get(allocator, "")
        if library:
            env["LD_PRELOAD"] = ctypes.util.find_library(library) or ""
        command = [sys.executable, "-m", child.__name__, model, json.dumps(MODELS[model])]
        if allocator == "daf":
            command.append("--daf")
        self._process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._expect("ready")

    def step(self) -> None:
        self._write("step\n")
        answer = self._expect("done")
        self.seconds.append(float(answer[1]))
        self.faults.append(int(answer[2]))
        self.peak_bytes = int(answer[3])

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait()

    def row(self) -> Row:
        seconds = self.seconds[NUM_WARMUP_STEPS:]
        quartiles = statistics.quantiles(seconds, n=4)
        return Row(
            self.model,
            self.allocator,
            self.peak_bytes,
            statistics.median(seconds),
            statistics.median(self.faults[NUM_WARMUP_STEPS:]),
            (quartiles[2] - quartiles[0]) / 2,
        )

    def _write(self, text: str) -> None:
        stream = self._pipe(self._process.stdin)
        stream.write(text)
        stream.flush()

    def _expect(self, word: str) -> list[str]:
        answer = self._pipe(self._process.stdout).readline().split()
        if not answer or answer[0] != word:
            self._process.kill()
            raise RuntimeError(f"the {self.allocator} run of {self.model} ended early (status {self._process.wait()})")
        return answer

    @staticmethod
    def _pipe(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream


def race(model: str, allocators: list[str], num_steps: int) -> list[Row]:
    """Train `model` under each allocator, one step of each in turn."""
    contestants = [Contestant(model, allocator) for allocator in allocators]
    try:
        for i in range(NUM_WARMUP_STEPS + num_steps):
            turn = i % len(contestants)
            for contestant in contestants[turn:] + contestants[:turn]:
                contestant.step()
    finally:
        for contestant in contestants:
            contestant.close()
    return [contestant.row() for contestant in contestants]


def available() -> list[str]:
    """The allocators that this machine has, DAF last."""
    return [name for name, lib in PEERS.items() if not lib or ctypes.util.find_library(lib)] + ["daf"]


def show(rows: list[Row]) -> None:
    peers = [row for row in rows if row.allocator != "daf"]
    best_peak = min(row.peak_bytes for row in peers)
    best_step = min(row.step_seconds for row in peers)
    print(f"{rows[0].model}: {MODELS[rows[0].model]}")
    print(f"  {'allocator':<10}{'peak':>10}{'of best':>9}{'step s':>10}{'+-':>8}{'of best':>9}{'faults/step':>13}")
    for row in rows:
        print(
            f"  {row.allocator:<10}{format_bytes(row.peak_bytes):>10}{row.peak_bytes / best_peak:>9.3f}"
            f"{row.step_seconds:>10.3f}{row.spread_seconds:>8.3f}{row.step_seconds / best_step:>9.3f}"
            f"{row.faults_per_step:>13.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--allocators", default=",".join(available()))
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    if missing := sorted(PEERS.keys() - set(available())):
        print(f"not measured: {', '.join(missing)} (Debian: libjemalloc2, libtcmalloc-minimal4, libmimalloc2.0)")
    rows: list[Row] = []
    for model in options.models.split(","):
        of_model = race(model, options.allocators.split(","), options.steps)
        show(of_model)
        rows += of_model
    if options.json:
        write_json(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
