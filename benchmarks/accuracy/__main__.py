"""How well training ends under DAF: the final metric of plain and of DAF at several ratios, over seeds.

Each run is a process of its own with one thread; as many run at once as there are cores. A seed decides weights, order
of the data and dropout, so the runs of one seed differ by the method alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.tools import report

METHODS = "plain,daf-4,daf-2,daf-auto-16x,daf-auto-20x,daf-auto-24x,daf-auto-32x"
COLUMNS = {
    "method": str,
    "metric": str,
    "mean": lambda value: f"{value:.3f}",
    "spread": lambda value: f"±{value:.3f}",
    "loss_against_plain": lambda value: f"{value:+.3f}",
    "saved_ratio": lambda value: f"{value:.1f}x",
    "seconds": lambda value: f"{value:.0f}",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One training to its end."""

    task: str
    method: str
    seed: int
    data: str
    is_quick: bool = False
    num_steps: int = 0  # 0: the task's own


def train(run: Run) -> dict[str, Any]:
    """Train as `run` says; return the metric and what was saved, as a ratio to plain."""
    import torch

    from benchmarks.accuracy.tasks import TASKS
    from benchmarks.peers.method import Method
    from benchmarks.train import methods
    from benchmarks.train.worker import Job
    from benchmarks.workloads.data import DataFolder

    task = TASKS[run.task](DataFolder(run.data), run.seed, is_quick=run.is_quick)
    num_steps = run.num_steps or task.num_steps
    plain_saved_bytes = Method(task.recipe.build()).saved_bytes(task.recipe.make_batch(0))
    job = Job(model=run.task, method=run.method, plain_saved_bytes=plain_saved_bytes)
    session = methods.open_session(job, 0)
    workload = task.recipe.build()
    method = methods.make(run.method, workload, session)
    optimizer = task.optimizer(list(workload.trainable()))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / num_steps))
    began = time.process_time()  # one thread: whatever else the machine does, this is the run's own
    for step in range(num_steps):
        optimizer.zero_grad(set_to_none=True)
        method.forward(workload.make_batch(step)).backward()
        optimizer.step()
        schedule.step()
        method.step_ended()
    seconds = time.process_time() - began
    saved_bytes = method.saved_bytes(workload.make_batch(0))
    workload.model.eval()
    with torch.no_grad():
        metric = task.evaluate(workload.model)
    return {
        "metric": metric,
        "name": task.metric,
        "is_better": task.is_better,
        "saved_ratio": plain_saved_bytes / max(saved_bytes, 1),
        "seconds": seconds,
    }


def _rate(progress: float) -> float:
    """Warm up over the first tenth, then fall to zero along a cosine."""
    return progress / 0.1 if progress < 0.1 else 0.5 * (1 + math.cos(math.pi * (progress - 0.1) / 0.9))


class Finished:
    """Runs that have ended, a JSON line each in a file: hours of training need not end in one sitting.

    A line is as good as the code that it was measured with: whoever changes that begins a new file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._path.read_text().splitlines() if self._path and self._path.exists() else []
        self._results = {self._key(line["run"]): line["result"] for line in map(json.loads, lines)}

    @staticmethod
    def _key(run: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted((name, value) for name, value in run.items() if name != "data"))

    def result(self, run: Run) -> dict[str, Any]:
        """What the run came to, or comes to now."""
        known = self._results.get(self._key(asdict(run)))
        if known is not None:
            return known
        result = run_in_process(run)
        if self._path and "error" not in result:
            with self._path.open("a") as file:
                file.write(json.dumps({"run": asdict(run), "result": result}) + "\n")
        return result


def run_in_process(run: Run) -> dict[str, Any]:
    """Train in a process of its own; return its result, or what went wrong."""
    command = [sys.executable, "-m", "benchmarks.accuracy", "--run", json.dumps(asdict(run))]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    name = f"{run.task} {run.method} seed {run.seed}"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"  {name}: {last}", file=sys.stderr, flush=True)
        return {"error": last}
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"  {name}: {result['metric']:.3f} in {result['seconds']:.0f} s", file=sys.stderr, flush=True)
    return result


def summary(task: str, method: str, results: list[dict[str, Any]], plain: list[float]) -> report.Row:
    """Return the row of one method over its seeds. A positive loss means worse than plain with the same seeds."""
    failed = [result["error"] for result in results if "error" in result]
    if failed:
        return {"task": task, "method": method, "error": failed[0]}
    values = [result["metric"] for result in results]
    mean = statistics.mean(values)
    sign = results[0]["is_better"]
    return {
        "task": task,
        "method": method,
        "metric": results[0]["name"],
        "mean": mean,
        "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
        "loss_against_plain": sign * (statistics.mean(plain[: len(values)] or values) - mean) or 0.0,
        "saved_ratio": statistics.mean(result["saved_ratio"] for result in results),
        "seconds": statistics.median(result["seconds"] for result in results),
        "values": values,
    }


def measure(first: Run, num_seeds: dict[str, int], jobs: int, finished: Finished) -> list[report.Row]:
    """Return a row for each method; the first is what the others are compared with. `first` says the rest of a run."""
    with ThreadPoolExecutor(jobs) as pool:
        runs = {
            method: [pool.submit(finished.result, replace(first, method=method, seed=seed)) for seed in range(num)]
            for method, num in num_seeds.items()
        }
    rows: list[report.Row] = []
    for method, futures in runs.items():
        plain = rows[0].get("values", []) if rows else []
        rows.append(summary(first.task, method, [future.result() for future in futures], plain))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--task", choices=["cifar10", "sst2", "stsb", "charlm", "e2e"], default="charlm")
    parser.add_argument(
        "--methods", default=METHODS, help="the first is what others are compared with; default: %(default)s"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--curve", default="", help="further methods, of one seed each: where the curve breaks")
    parser.add_argument(
        "--quick", action="store_true", help="a fraction of the steps: shows that it learns, not how well"
    )
    parser.add_argument("--steps", type=int, default=0, help="default: the task's own")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once, one thread each")
    parser.add_argument("--data", default="../shared/data", help="folder of the data sets; default: %(default)s")
    parser.add_argument("--runs", default="", help="a file of runs that have ended: added to, and not run again")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(train(Run(**json.loads(arguments.run)))))
        return
    if not Path(arguments.data).is_dir():
        parser.error(
            f"{arguments.data} is no folder: --data names the one with the data sets (see benchmarks/workloads/data.py)"
        )
    methods = arguments.methods.split(",")
    num_seeds = dict.fromkeys(methods, arguments.seeds) | dict.fromkeys(filter(None, arguments.curve.split(",")), 1)
    first = Run(arguments.task, methods[0], 0, arguments.data, is_quick=arguments.quick, num_steps=arguments.steps)
    rows = measure(first, num_seeds, arguments.jobs, Finished(arguments.runs))
    print(f"\n{arguments.task}, {arguments.seeds} seeds\n" + report.format_table(rows, COLUMNS))
    if arguments.json:
        report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
