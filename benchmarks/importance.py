"""What importance costs: sampled steps against others, interleaved, and their share of a training of 200 steps.

A sampled step pays for norms and distortion curves, the step after it for the plan: both are counted. Processor time,
because a busy machine bends it less.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import daf
from benchmarks.tools import report
from benchmarks.tools.cli import add_model_options, job_of
from benchmarks.train.training import options_of
from benchmarks.train.worker import Job
from benchmarks.workloads import models
from daf.quant.plan.policy import is_sampled

NUM_WARMUPS = 4
NUM_STEPS = 200
SAMPLED = next(number for number in range(NUM_WARMUPS, NUM_STEPS) if is_sampled(number))
COLUMNS = {
    "model": str,
    "step_cpu_seconds": lambda value: f"{value:.3f}",
    "sampled_step_ratio": lambda value: f"{value:.2f}",
    "num_samples": str,
    "share": lambda value: f"{value:.2%}",
}


class Trainer:
    """A model that is trained under `auto`, step by step."""

    def __init__(self, job: Job, session: daf.Session) -> None:
        self._workload = models.recipe(job.model, options_of(job)).build()
        self._optimizer = self._workload.optimizer()
        self._policy = session.engine.policy
        self._num_steps = 0

    def pair(self, *, is_first_sampled: bool) -> float:
        """Train two steps, the first sampled or not; return their processor time."""
        self._policy.num_steps = SAMPLED - 1 if is_first_sampled else SAMPLED + 1
        return self._step() + self._step()

    def _step(self) -> float:
        self._num_steps += 1
        batch = self._workload.make_batch(self._num_steps)
        began = time.process_time()
        self._optimizer.zero_grad(set_to_none=True)
        self._workload.loss(self._workload.model, batch).backward()
        self._optimizer.step()
        return time.process_time() - began


def measure(job: Job, repeats: int) -> report.Row:
    with daf.Session(bits="auto") as session:
        trainer = Trainer(job, session)
        for _ in range(NUM_WARMUPS):
            trainer.pair(is_first_sampled=True)
        pairs = [(trainer.pair(is_first_sampled=True), trainer.pair(is_first_sampled=False)) for _ in range(repeats)]
    num_samples = sum(map(is_sampled, range(1, NUM_STEPS + 1)))
    step_seconds = statistics.median(plain for _, plain in pairs) / 2
    extra = statistics.median(sampled - plain for sampled, plain in pairs) / step_seconds
    return {
        "model": job.model,
        "step_cpu_seconds": step_seconds,
        "sampled_step_ratio": 1.0 + extra,
        "num_samples": num_samples,
        "share": num_samples * extra / NUM_STEPS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.importance", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="write the row to this file")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    row = measure(job_of(arguments), arguments.repeats)
    print(report.format_table([row], COLUMNS))
    if arguments.json:
        report.write_json(arguments.json, [row])


if __name__ == "__main__":
    main()
