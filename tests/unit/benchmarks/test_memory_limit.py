"""A process that exceeds its limit ends, whichever way the limit is kept."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from benchmarks.tools.memory_limit import MemoryLimit, Watched, make_limit

MIB = 2**20
# Grows after it was told to, so that the limit is in force by then.
GROW = "import sys, time; sys.stdin.readline(); block = b'x' * ({} << 20); time.sleep(0.5)"


def _status_under(limit: MemoryLimit, num_mib: int) -> int:
    process = subprocess.Popen([sys.executable, "-c", GROW.format(num_mib)], stdin=subprocess.PIPE, text=True)
    try:
        limit.add(process.pid)
        process.communicate("go\n", timeout=60)
        return process.returncode
    finally:
        process.kill()
        limit.close()


@pytest.mark.parametrize("make", [make_limit, Watched])
def test_a_process_over_the_limit_is_killed_and_one_below_it_not(make: Callable[[int], MemoryLimit]) -> None:
    assert _status_under(make(128 * MIB), 300) == -signal.SIGKILL
    assert _status_under(make(128 * MIB), 20) == 0
