"""Pausing compression of a live run over REST: new saves are exact until it is resumed."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.integration.sidecar_tools import end, sidecar_process, wait_for

TRAINING = """
import sys, torch, daf
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1))
x = torch.randn(512, 128)

def gradient():
    net.zero_grad()
    net(x).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])

exact = gradient()
with daf.Session(bits=2, budget="64MiB", cpu_allocator="off"):
    for _ in range(3):
        gradient()
    print("ready", flush=True)
    for line in sys.stdin:
        gradient()
        print("exact" if torch.equal(gradient(), exact) else "compressed", flush=True)
"""


def test_a_paused_run_saves_exactly_until_it_is_resumed() -> None:
    command = [sys.executable, "-c", TRAINING]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert child.stdin is not None
    assert child.stdout is not None

    def ask() -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("step\n")
        child.stdin.flush()
        return child.stdout.readline().strip()

    try:
        assert child.stdout.readline() == "ready\n"
        with sidecar_process() as (_, client):
            wait_for(lambda: [one for one in client.processes()["processes"] if one["pid"] == child.pid])
            assert ask() == "compressed"
            client.pause(True, pid=child.pid)
            wait_for(lambda: ask() == "exact")
            client.pause(False, pid=child.pid)
            wait_for(lambda: ask() == "compressed")
    finally:
        child.stdin.close()
        end(child)
