"""Ctrl-C reaches the user, whatever DAF is doing when it comes."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED = """
import random, signal, sys, threading, time, torch
from torch import nn
import daf

torch.manual_seed(0)
net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(6)))
x = torch.randn(256, 64)
num_caught = 0
with daf.Session(budget="64MiB", bits=BITS, cpu_allocator="off"):
    for number in range(20):
        seconds = 0.02 + 0.001 * random.Random(number).randrange(20)
        threading.Timer(seconds, signal.raise_signal, (signal.SIGINT,)).start()
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                net(x).square().mean().backward()
        except KeyboardInterrupt:
            num_caught += 1
print(num_caught)
"""


def caught(bits: str) -> str:
    code = INTERRUPTED.replace("BITS", repr(bits))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250).stdout


def test_every_interrupt_arrives_while_tensors_are_compressed() -> None:
    assert caught("2") == "20\n"


def test_every_interrupt_arrives_while_all_is_exact() -> None:
    assert caught("auto") == "20\n"
