"""A real training while its budget falls: `python -m benchmarks.budget --falling`.

The budget is asked for from outside, over the command page, from all that plain training needs down to a tenth of it.
What the last step held in tensors and floors cannot be given up: such a budget is refused with the least that would do,
and that is asked for instead, with a twentieth for what differs from step to step. Where that proves too little, the
budget gives way. So every run ends at its floor.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import psutil

import daf
from benchmarks.tools.sampling import Sampler
from benchmarks.workloads.models import build
from benchmarks.workloads.workload import Workload
from daf.allocator.stats.reader import StatsPage
from daf.sizes import format_bytes

MODELS: dict[str, dict[str, Any]] = {
    "resnet18": {"batch_size": 16},
    "minilm": {"batch_size": 8, "seq_len": 64},
}
UNLIMITED_BYTES = int(psutil.virtual_memory().total)  # a session warns of more
PERCENTS = range(100, 5, -10)
ANSWER_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    model: str
    percent: int  # of what plain training needs
    asked_bytes: int
    outcome: str
    budget_bytes: int  # in force during the steps of this row
    sampled_peak_bytes: int  # highest resident bytes of the arena over the steps, looked at every millisecond
    num_evictions: int
    loss: float


class Trainer:
    """A workload that is trained by the step."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._optimizer = workload.optimizer()
        self._num_steps = 0

    def is_finite(self) -> bool:
        return all(bool(parameter.isfinite().all()) for parameter in self._workload.model.parameters())

    def step(self) -> float:
        self._optimizer.zero_grad()
        batch = self._workload.make_batch(self._num_steps)
        loss = self._workload.loss(self._workload.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._num_steps += 1
        return loss.item()


def need_bytes(model: str, settings: dict[str, Any]) -> int:
    """Return what plain training holds at most, tensors and saved activations together."""
    with daf.Session(budget=UNLIMITED_BYTES, bits="off") as session:
        trainer = Trainer(build(model, **settings))
        for _ in range(2):
            trainer.step()
        return int(session.stats()["peak_held_bytes"])


def ask(page: StatsPage, num_bytes: int) -> Any:
    """Ask for a budget as `daf budget` does and return the outcome."""
    generation = page.request_budget(num_bytes)
    deadline = time.monotonic() + ANSWER_SECONDS
    while (outcome := page.outcome(generation)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the run did not answer")
        time.sleep(0.01)
    return outcome


def fall(model: str, settings: dict[str, Any] | None = None, num_steps: int = 2) -> list[Row]:
    """Train while the budget falls, some steps at each level, to the floor."""
    settings = MODELS[model] if settings is None else settings
    need = need_bytes(model, settings)
    rows: list[Row] = []
    with daf.Session(budget=need * 2, bits=8) as session:
        trainer = Trainer(build(model, **settings))
        trainer.step()
        trainer.step()
        page = StatsPage(session.arena.page_path)
        for percent in PERCENTS:
            asked = need * percent // 100
            outcome = ask(page, asked)
            if outcome.state == "refused":
                ask(page, outcome.least_bytes * 21 // 20)
            with Sampler(session) as sampler:
                loss = [trainer.step() for _ in range(num_steps)][-1]
            stats = session.stats()
            row = Row(
                model,
                percent,
                asked,
                outcome.state,
                int(stats["budget_bytes"]),
                sampler.peak_bytes,
                int(stats["evictions_total"]),
                loss,
            )
            rows.append(row)
    if not trainer.is_finite():  # with room again: the check needs memory of its own
        raise FloatingPointError(f"{model} has parameters that are not finite")
    return rows


def show(rows: list[Row]) -> None:
    print(f"{rows[0].model}: {MODELS[rows[0].model]}, 8 bits, budget in percent of what plain training needs")
    print(f"  percent{'asked':>11}{'outcome':>10}{'in force':>11}{'sampled peak':>14}{'evictions':>11}{'loss':>9}")
    for row in rows:
        asked, in_force, peak = map(format_bytes, (row.asked_bytes, row.budget_bytes, row.sampled_peak_bytes))
        print(
            f"  {row.percent:>7}{asked:>11}{row.outcome:>10}{in_force:>11}{peak:>14}{row.num_evictions:>11}"
            f"{row.loss:>9.4f}"
        )
