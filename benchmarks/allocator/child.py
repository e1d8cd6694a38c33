"""One training process of benchmarks.allocator: a line in, one step, a line out."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from benchmarks.tools.process_memory import resident_bytes, resident_peak_bytes, restart_peak

UNLIMITED_BYTES = 1 << 40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--daf", action="store_true")
    options = parser.parse_args()

    from benchmarks.workloads.models import recipe
    from benchmarks.workloads.workload import Options

    if options.model == "minilm":
        import transformers.models.bert.modeling_bert  # noqa: F401  imports of the model are not its memory
    if options.daf:
        from daf.allocator import Arena, install_cpu
    made = recipe(options.model, Options(**options.settings))
    restart_peak()
    baseline_bytes = resident_bytes()
    arena = None
    if options.daf:
        arena = Arena(UNLIMITED_BYTES)
        if not install_cpu(arena):
            sys.exit("DAF's CPU allocator could not be installed")
    workload = made.build()
    optimizer = workload.optimizer()
    print("ready", flush=True)
    for i, _ in enumerate(sys.stdin):
        faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        optimizer.zero_grad()
        workload.loss(workload.model, workload.make_batch(i)).backward()
        optimizer.step()
        seconds = time.perf_counter() - start
        if arena is not None:
            arena.step(seconds)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        print("done", seconds, faults, resident_peak_bytes() - baseline_bytes, flush=True)


if __name__ == "__main__":
    main()
