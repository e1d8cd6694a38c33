"""Two models in two threads, batches of random size, budgets changed at random over REST: does anything fail or hang?

    python -m benchmarks.soak [--seconds 600] [--low 0.6] [--high 1.3]

Budgets are drawn between `low` and `high` of what plain torch needs for the largest batches of both. A step that fails,
a loss that is not finite, a thread that stands still, books that do not add up: each ends the run with an error.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import daf
from daf.server import Client, ensure_running
from daf.server.client import SidecarError
from daf.sizes import format_bytes

STILL_SECONDS = 60.0  # without a step: a deadlock
AMPLE_BYTES = 4 << 30
WIDTH, MAX_BATCH = 128, 32


def images() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())

    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *(block() for _ in range(5)), *head)


def words() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(WIDTH, 10))


def image_loss(model: nn.Module, size: int) -> Tensor:
    return F.cross_entropy(model(torch.randn(size, 3, 32, 32)), torch.randint(10, (size,)))


def word_loss(model: nn.Module, size: int) -> Tensor:
    return F.cross_entropy(model(torch.randn(size, 64, WIDTH)).flatten(0, 1), torch.randint(10, (size * 64,)))


@dataclass(slots=True)
class Trainer:
    """One model, trained in a thread of its own until it is told to stop."""

    model: nn.Module
    loss: Callable[[nn.Module, int], Tensor]
    stop: threading.Event
    seed: int
    num_steps: int = 0
    failure: BaseException | None = None
    thread: threading.Thread | None = None
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, size: int) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, size)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if not math.isfinite(loss.item()):
            raise ArithmeticError(f"the loss is {loss.item()} after {self.num_steps} steps")
        self.num_steps += 1

    def run(self) -> None:
        sizes = random.Random(self.seed)
        try:
            while not self.stop.is_set():
                self.step(sizes.randint(1, MAX_BATCH))
        except BaseException as error:
            self.failure = error

    def start(self) -> None:
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()


def trainers(stop: threading.Event) -> list[Trainer]:
    return [Trainer(images(), image_loss, stop, seed=1), Trainer(words(), word_loss, stop, seed=2)]


def need_bytes() -> int:
    """What plain torch takes for the largest batches: both models' peaks, one after the other."""
    total = 0
    for number in range(2):
        with daf.Session(budget=AMPLE_BYTES, bits="off") as session:
            trainer = trainers(threading.Event())[number]
            trainer.step(MAX_BATCH)
            trainer.step(MAX_BATCH)
            total += int(session.stats()["peak_resident_bytes"])
    return total


def watch(found: list[Trainer], seconds: float, change: Callable[[], None]) -> None:
    """Change budgets until the time is up, or a trainer fails or stands still."""
    end = time.monotonic() + seconds
    last = [(trainer.num_steps, time.monotonic()) for trainer in found]
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(2 * STILL_SECONDS, exit=True)
        change()
        for i, trainer in enumerate(found):
            if trainer.failure is not None:
                raise trainer.failure
            if trainer.num_steps != last[i][0]:
                last[i] = (trainer.num_steps, time.monotonic())
            elif time.monotonic() - last[i][1] > STILL_SECONDS:
                faulthandler.dump_traceback()
                raise TimeoutError(f"no step for {STILL_SECONDS:.0f} s")


def soak(seconds: float, low: float, high: float, seed: int = 0) -> dict[str, Any]:
    """Train and change; return what happened."""
    need, draw, stop = need_bytes(), random.Random(seed), threading.Event()
    client = Client(ensure_running())
    answers: dict[str, int] = {}

    def change() -> None:
        try:
            answer = client.put_budget(int(draw.uniform(low, high) * need), pid=os.getpid())
        except SidecarError:
            if answers:
                raise
            return time.sleep(0.2)  # it has not seen this session yet
        answers[answer.state] = answers.get(answer.state, 0) + 1
        return time.sleep(draw.uniform(0.0, 0.5))

    with daf.Session(budget=int(high * need)) as session:
        found = trainers(stop)
        for trainer in found:
            trainer.start()
        try:
            watch(found, seconds, change)
        finally:
            stop.set()
            for trainer in found:
                assert trainer.thread is not None
                trainer.thread.join(STILL_SECONDS)
        faulthandler.cancel_dump_traceback_later()
        steps = [trainer.num_steps for trainer in found]
        failures = [trainer.failure for trainer in found if trainer.failure is not None]
        if failures:
            raise failures[0]
        del trainer, found[:]
        gc.collect()
        stats, invalid = session.stats(), session.engine.arena.why_invalid()
    if invalid or stats["raw_bytes"] or stats["stored_bytes"] or stats["failures_total"]:
        raise AssertionError(f"the books do not add up: {invalid or stats}")
    return {"need_bytes": need, "steps": steps, "answers": answers, "late_total": stats["late_total"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="default: %(default)s")
    parser.add_argument("--low", type=float, default=0.6, help="of plain's need; default: %(default)s")
    parser.add_argument("--high", type=float, default=1.3, help="of plain's need; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = soak(arguments.seconds, arguments.low, arguments.high, arguments.seed)
    print(f"plain needs {format_bytes(result['need_bytes'])}; steps {result['steps']}, budgets {result['answers']}, ")
    print(f"tensors compressed late: {result['late_total']}; nothing failed", file=sys.stdout)


if __name__ == "__main__":
    main()
