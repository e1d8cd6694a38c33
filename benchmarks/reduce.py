"""Range reductions: every strategy over sizes, layouts and threads, beside torch's own, and what is chosen at run time.

    python -m benchmarks.reduce [--json FILE]

Columns are GB/s of the tensor read, from the shortest of some rounds taken in turn; `spread` is how far the medians lie
above. `chosen` is what the process settled on by itself after a few calls, `of best` how
its speed compares with the best strategy of the same run, and `learning` what the trials before that cost in calls of
the best strategy.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch

from benchmarks.tools.report import Row, format_table, write_json
from daf.kernels.reduce.choice import STRATEGIES, Chooser
from daf.kernels.reduce.ranges import value_ranges
from daf.kernels.reduce.tune import Shape, interleaved, least, measure, shapes, spread
from daf.sizes import format_bytes

WARM_CALLS = 40
LAYOUTS = {1: "whole", 64: "64 maps", 1024: "1024 columns"}


def torch_ranges(values: torch.Tensor) -> Any:
    if values.shape[1] == 1:
        return torch.aminmax(values)
    return values.amin(dim=(0, 2)), values.amax(dim=(0, 2))


def one_row(memory: torch.Tensor, shape: Shape, *, num_threads: int, rounds: int) -> Row:
    """Measure one shape on one number of threads."""
    numel = shape[0] * shape[1] * shape[2]
    values = memory[:numel].view(shape)
    dtype = str(memory.dtype).removeprefix("torch.")
    times = measure(values.data_ptr(), dtype, shape, rounds=rounds)
    seconds = least(times)
    peer = least(interleaved({"torch": lambda: torch_ranges(values)}, rounds=rounds))["torch"]
    chooser = Chooser()
    used = [value_ranges(values.data_ptr(), dtype, shape, chooser=chooser).strategy for _ in range(WARM_CALLS)]
    chosen = Counter(used[-10:]).most_common(1)[0][0]
    best = min(seconds.values())
    trials = sum(seconds[strategy] - best for strategy in used)
    gb = numel * memory.element_size() / 1e9
    return {
        "layout": LAYOUTS[shape[1]], "dtype": dtype, "bytes": numel * memory.element_size(), "threads": num_threads,
        **{name: gb / seconds[name] for name in STRATEGIES}, "torch": gb / peer,
        "best": min(seconds, key=seconds.__getitem__), "chosen": chosen, "of best": best / seconds[chosen],
        "learning": trials / best, "spread": max(map(spread, times.values())),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reduce", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the rows, with machine and versions, to FILE")
    parser.add_argument("--threads", default="", help="comma separated; default: 1 and torch's own number")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    wanted = [int(text) for text in arguments.threads.split(",") if text] or sorted({1, torch.get_num_threads()})
    cases = shapes()
    memory = torch.randn(max(a * b * c for a, b, c in cases)).to(getattr(torch, arguments.dtype))
    rows = []
    for num_threads in wanted:
        torch.set_num_threads(num_threads)
        rows += [one_row(memory, shape, num_threads=num_threads, rounds=arguments.rounds) for shape in cases]
    speed = "{:.1f}".format
    columns = {
        "layout": str, "bytes": format_bytes, "threads": str, **dict.fromkeys(STRATEGIES, speed), "torch": speed,
        "best": str, "chosen": str, "of best": "{:.2f}".format, "learning": "{:.1f}".format, "spread": "{:.1f}".format,
    }  # fmt: skip
    print(format_table(rows, columns))
    print("\n" + summary(rows))
    if arguments.json:
        write_json(arguments.json, rows)


def summary(rows: list[Row]) -> str:
    """Return in three lines what the table says."""
    wins = Counter(row["best"] for row in rows)
    fixed = {name: _mean([row[name] / max(row[other] for other in STRATEGIES) for row in rows]) for name in STRATEGIES}
    return (
        f"fastest: {', '.join(f'{name} {wins[name]} times' for name in STRATEGIES)} of {len(rows)}\n"
        f"always one strategy: {', '.join(f'{name} {fixed[name]:.2f}' for name in STRATEGIES)} of the best's speed; "
        f"chosen at run time: {_mean([row['of best'] for row in rows]):.2f}\n"
        f"against torch: {_mean([row[row['chosen']] / row['torch'] for row in rows]):.1f} times as fast as its own"
    )


def _mean(ratios: list[float]) -> float:
    """Geometric mean: what ratios have."""
    return float(torch.tensor(ratios, dtype=torch.float64).log().mean().exp())


if __name__ == "__main__":
    main()
