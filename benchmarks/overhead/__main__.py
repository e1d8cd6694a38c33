"""What the hooks cost. Processor time on one thread, all variants in turn in one process, medians.

saves    microseconds a saved tensor, forward and backward, over no hooks at all: torch's hooks that do nothing,
         `save_on_cpu`, offloading hooks, and DAF at a fixed width of 2 bits. `codec` is what encoding and decoding
         take by themselves, `daf_of_no_op` what DAF's hooks cost of those that do nothing
steps    the whole step of five small models under DAF, of plain
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.overhead import saves, steps
from benchmarks.tools import report

PEERS = ("no_op", "save_on_cpu", "offload", "daf")


def _number(value: Any) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


SAVE_COLUMNS: dict[str, Callable[[Any], str]] = {
    "save": str,
    **{f"{peer}_{part}": _number for peer in PEERS for part in ("forward", "backward")},
    "codec": _number,
    "daf_of_no_op": _number,
}
STEP_COLUMNS: dict[str, Callable[[Any], str]] = {
    "model": str,
    "setting": str,
    **dict.fromkeys(("plain_ms", "daf_ms", "of_plain", "lowest", "highest"), _number),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31, help="of each kind of save")
    parser.add_argument("--repeats", type=int, default=5, help="of each model's block of steps")
    parser.add_argument("--only", choices=("saves", "steps"), help="leave the other out")
    parser.add_argument("--models", nargs="+", choices=tuple(steps.MODELS), default=list(steps.MODELS))
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    if arguments.only != "steps":
        rows = [saves.measure("kept, 1 KiB", saves.SMALL_BYTES, arguments.rounds)]
        rows.append(saves.measure("kept parameter", saves.SMALL_BYTES, arguments.rounds, is_parameter=True))
        rows += [saves.measure(f"{size >> 10} KiB", size, arguments.rounds) for size in saves.SIZES]
        print(report.format_table(rows, SAVE_COLUMNS), flush=True)
    if arguments.only != "saves":
        found = [steps.measure(n, setting, arguments.repeats) for n in arguments.models for setting in steps.SETTINGS]
        print(report.format_table(found, STEP_COLUMNS))
        rows += found
    if arguments.json:
        report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
