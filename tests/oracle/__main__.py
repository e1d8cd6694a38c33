"""`python -m tests.oracle --operations 1000000`: as many random operations on the arena and its twin as asked for."""

from __future__ import annotations

import argparse
import time

from tests.oracle.pair import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    chunk = 50_000
    for done in range(0, arguments.operations, chunk):
        run(min(chunk, arguments.operations - done), arguments.seed + done)
    seconds = time.monotonic() - started
    print(f"{arguments.operations} operations on the arena and its twin: no difference ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
