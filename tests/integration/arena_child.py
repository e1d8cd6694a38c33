"""A process with a real arena that steps without torch, so that tests can start and kill many of them.

usage: arena_child.py [budget bytes] [slots] [step seconds]
"""

from __future__ import annotations

import random
import sys
import time

from daf.allocator import Arena

PLANE_BYTES = 16384
NUM_PLANES = 4


def main(budget_bytes: int = 64 << 20, num_slots: int = 20, step_seconds: float = 0.05) -> None:
    arena = Arena(budget_bytes)
    layout = [4096] + [PLANE_BYTES] * NUM_PLANES
    specs = [arena.stash_spec(layout, [1e9] + [random.random() / 4**b for b in range(4)]) for _ in range(num_slots)]
    for slot_id in range(num_slots):
        arena.slot(
            slot_id, name=f"layer.{slot_id}", op="linear", codec="meansplit", bits=NUM_PLANES,
            raw_bytes=PLANE_BYTES * 32, stored_bytes=sum(layout), importance=random.random(), fidelity=0.9,
        )  # fmt: skip
    print("ready", flush=True)
    while True:
        began = time.monotonic()
        held = []
        for slot_id, spec in enumerate(specs):
            stash = arena.reserve(spec, slot_id=slot_id, raw_bytes=PLANE_BYTES * 32)
            stash.unpin()
            held.append(stash)
        time.sleep(step_seconds)
        for stash in reversed(held):
            stash.release()
        arena.step(time.monotonic() - began)


if __name__ == "__main__":
    numbers = [float(argument) for argument in sys.argv[1:]]
    main(*(int(number) for number in numbers[:2]), *numbers[2:])
