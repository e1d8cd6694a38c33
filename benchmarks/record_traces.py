"""Record the traces that benchmarks.replay ships: python -m benchmarks.record_traces [FOLDER]

| trace | what it is |
|---|---|
| resnet18 | ResNet-18, CIFAR stem, batch 64, 2 bits: large blocks, few sizes |
| gpt2-lora | GPT-2 with LoRA, batch 4, 128 tokens, 2 bits: many sizes, most of them frozen weights and stashes |
| mixed-bits | a small GPT, another batch size every step, at 1, 8, 2 and 4 bits in turn: hardly a size comes twice |
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

import daf
from benchmarks.replay.__main__ import TRACES
from benchmarks.workloads.models import build
from benchmarks.workloads.workload import Workload
from daf.allocator import start_trace, stop_trace
from daf.allocator.trace.recording import Record, read_trace, write_trace

UNLIMITED = 1 << 36
MIN_BLOCK_BYTES = 4096  # smaller blocks are most of the lines and next to none of the bytes
BATCH_SIZES = (6, 16, 3, 11, 8, 14, 5, 9)


def train(workload: Workload, num_steps: int) -> None:
    optimizer = workload.optimizer()
    for i in range(num_steps):
        optimizer.zero_grad()
        workload.loss(workload.model, workload.make_batch(i)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def resnet18() -> None:
    with daf.Session(budget=UNLIMITED, bits=2):
        train(build("resnet18", batch_size=64), 2)


def gpt2_lora() -> None:
    with daf.Session(budget=UNLIMITED, bits=2):
        train(build("gpt2-lora", batch_size=4, seq_len=128), 1)


def mixed_bits() -> None:
    for i, batch_size in enumerate(BATCH_SIZES):
        with daf.Session(budget=UNLIMITED, bits=(1, 8, 2, 4)[i % 4]):
            train(build("gpt-small", batch_size=batch_size, seq_len=96), 1)


def without_small_blocks(records: list[Record]) -> list[Record]:
    """Leave out blocks below MIN_BLOCK_BYTES and their frees; stashes stay, whatever their size."""
    small: set[int] = set()
    kept = []
    for record in records:
        if record.action == "allocate" and record.num_bytes < MIN_BLOCK_BYTES:
            small.add(record.pointer)
        elif record.action == "free" and record.pointer in small:
            small.remove(record.pointer)
        else:
            kept.append(record)
    return kept


def main() -> None:
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else TRACES
    folder.mkdir(parents=True, exist_ok=True)
    for name, work in (("resnet18", resnet18), ("gpt2-lora", gpt2_lora), ("mixed-bits", mixed_bits)):
        with tempfile.NamedTemporaryFile(suffix=".csv") as raw:
            start_trace(raw.name)
            work()
            stop_trace()
            records = without_small_blocks(read_trace(raw.name))
        write_trace(folder / f"{name}.csv", records)
        print(f"{name}: {len(records)} requests, {(folder / f'{name}.csv').stat().st_size} bytes")


if __name__ == "__main__":
    main()
