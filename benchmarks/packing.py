"""Who packs, and what the forward sees of it: every way of packing, step by step in turn, over models and threads.

    python -m benchmarks.packing [--json FILE]

`packing` is the time spent encoding in one step, on whatever thread; `on forward` the part of it that ran on the thread
of the forward pass; `hidden` the share that did not. A worker is worth having where `step` falls below inline's: with
all cores busy it hides its work from the forward's thread and takes the core from the forward all the same. `held` is
the most raw bytes that waited for a worker at once: what hiding costs in memory. There is no GPU here, so `device`,
which on CPU tensors is inline, is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.tools.report import Row, format_table, write_json
from benchmarks.workloads.data import DataFolder
from benchmarks.workloads.models import build
from benchmarks.workloads.workload import Workload
from daf.allocator import Arena
from daf.quant import Engine
from daf.quant.encode.packing import Encode, Packer, Ticket, WorkerPacker
from daf.sizes import format_bytes

WAYS = ("plain", "inline", "worker")
WARM_UP = 3  # steps in which the engine learns what to derive and how wide


class MeteredPacker:
    """Another packer, with a clock around every encode."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._caller = threading.get_ident()
        self.seconds = 0.0
        self.caller_seconds = 0.0
        self.held_bytes = 0

    def submit(self, encode: Encode, tensor: torch.Tensor) -> Ticket:
        def timed(source: torch.Tensor) -> Any:
            start = time.perf_counter()
            value = encode(source)
            self._add(time.perf_counter() - start)
            return value

        ticket = self._packer.submit(timed, tensor)
        if isinstance(self._packer, WorkerPacker):
            self.held_bytes = max(self.held_bytes, self._packer.pending_bytes)
        return ticket

    def _add(self, seconds: float) -> None:
        self.seconds += seconds
        if threading.get_ident() == self._caller:
            self.caller_seconds += seconds

    def drain(self) -> None:
        self._packer.drain()

    def step(self, seconds: float) -> None:
        self._packer.step(seconds)

    def close(self) -> None:
        self._packer.close()


def train_step(workload: Workload, optimizer: torch.optim.Optimizer, number: int) -> dict[str, float]:
    """One step; the seconds of its parts."""
    batch = workload.make_batch(number)
    optimizer.zero_grad(set_to_none=True)
    start = time.perf_counter()
    loss = workload.loss(workload.model, batch)
    forward = time.perf_counter() - start
    loss.backward()
    optimizer.step()
    step = time.perf_counter() - start
    return {"forward": forward, "backward": step - forward, "step": step}


def packed_step(engine: Engine, run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """One step under the engine, with its packer metered."""
    with engine:
        meter = MeteredPacker(engine.encoder.packer)
        engine.encoder.packer = meter
        parts = run()
    return {
        **parts, "packing": meter.seconds, "on forward": meter.caller_seconds, "held": float(meter.held_bytes),
    }  # fmt: skip


def measure(workload: Workload, *, bits: int, steps: int) -> dict[str, dict[str, list[float]]]:
    """Return, for each way, the parts of every step after the warm-up. Ways take turns within each round."""
    optimizer = workload.optimizer()
    found: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    with Arena(4 << 30, publish=False) as arena:
        engines = {way: Engine(arena, bits=bits, packing=way) for way in WAYS if way != "plain"}
        for number in range(WARM_UP + steps):
            for way in WAYS:
                run = lambda: train_step(workload, optimizer, number)  # noqa: B023, E731
                parts = run() if way == "plain" else packed_step(engines[way], run)
                for name, value in parts.items() if number >= WARM_UP else ():
                    found[way].setdefault(name, []).append(value)
    return found


def rows_of(model: str, num_threads: int, found: dict[str, dict[str, list[float]]]) -> list[Row]:
    rows = []
    plain = statistics.median(found["plain"]["step"])
    for way, parts in found.items():
        row: Row = {"model": model, "threads": num_threads, "way": way}
        row |= {name: statistics.median(values) for name, values in parts.items()}
        row["of plain"] = row["step"] / plain
        row["spread"] = statistics.median(parts["step"]) / min(parts["step"])
        if way != "plain":
            row["hidden"] = 1 - row["on forward"] / row["packing"]
            row["of forward"] = row["packing"] / row["forward"]
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the rows, with machine and versions, to FILE")
    parser.add_argument(
        "--models", default="resnet18,gpt-small", help="comma separated; see benchmarks/workloads/models.py"
    )
    parser.add_argument("--threads", default="", help="comma separated; default: 1 and torch's own number")
    parser.add_argument("--scale", type=float, default=0.5, help="shrink width and depth; default: %(default)s")
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--data", default="../shared/data", help="folder of the data sets; default: %(default)s")
    arguments = parser.parse_args()
    wanted = [int(text) for text in arguments.threads.split(",") if text] or sorted({1, torch.get_num_threads()})
    rows = []
    for model in arguments.models.split(","):
        for num_threads in wanted:
            torch.set_num_threads(num_threads)
            workload = build(model, scale=arguments.scale, data=DataFolder(arguments.data))
            found = measure(workload, bits=arguments.bits, steps=arguments.steps)
            rows += rows_of(model, num_threads, found)
    seconds, share = "{:.3f}".format, "{:.2f}".format
    columns = {
        "model": str, "threads": str, "way": str, "step": seconds, "of plain": share, "forward": seconds,
        "backward": seconds, "packing": seconds, "on forward": seconds, "of forward": share, "hidden": share,
        "held": format_bytes, "spread": share,
    }  # fmt: skip
    print(format_table(rows, columns))
    if arguments.json:
        write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
