"""Training and sidecar in containers of one pod: other pid and mount namespaces, one folder, one user."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from daf.server import Client
from tests.integration.sidecar_tools import runtime_folder, wait_for

APART = ("unshare", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child=SIGKILL")
RUN = """
import signal, sys, time
import daf
with daf.Session(budget="32MiB", name=sys.argv[1]):
    import torch
    torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward()
    print("ready", flush=True)
    sys.stdin.readline()
    if sys.argv[1] == "failed": sys.exit(3)
    if sys.argv[1] == "interrupted": raise KeyboardInterrupt
    if sys.argv[1] == "out of memory": torch.empty(1 << 30)
"""
# Beside init, as under `tini`: init itself takes no signal that it has no handler for.
BESIDE_INIT = ("sh", "-c", 'exec 3<&0; "$@" <&3 & wait $!; exit $?', "sh")


def can_unshare() -> bool:
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="needs the right to make pid and mount namespaces (root)")


@contextlib.contextmanager
def container(*command: str) -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([*APART, *command], text=True, **pipes)
    with child:
        try:
            yield child
        finally:
            child.kill()


@contextlib.contextmanager
def training(name: str) -> Iterator[subprocess.Popen[str]]:
    with container(*BESIDE_INIT, sys.executable, "-c", RUN, name) as child:
        yield child


def pid_of(child: subprocess.Popen[str], name: str) -> int:
    """The run's pid as we see it."""
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if words[0] == sys.executable.encode() and words[-2] == name.encode() and RUN.encode() in words:
                return int(entry.parent.name)
    raise AssertionError(f"no process of {name} under {child.pid}")


def states(client: Client) -> dict[str, tuple[str, str]]:
    """Name to state and how it ended."""
    found = client.processes()["processes"]
    return {one["name"]: (one["state"], (one["ending"] or {}).get("how", "")) for one in found}


def test_another_container_s_runs_are_alive_and_end_as_they_do() -> None:
    names = ("finished", "failed", "interrupted", "terminated", "killed", "out of memory")
    with contextlib.ExitStack() as stack:
        stack.enter_context(container(sys.executable, "-m", "daf.server", "--port", "0", "--quiet"))
        wait_for((runtime_folder() / "sidecar.json").exists, 30)
        client = Client()
        runs = {name: stack.enter_context(training(name)) for name in names}
        for run in runs.values():
            assert run.stdout is not None
            assert run.stdout.readline() == "ready\n"
        wait_for(lambda: states(client) == dict.fromkeys(names, ("live", "")), 30)
        os.kill(pid_of(runs["killed"], "killed"), signal.SIGKILL)
        os.kill(pid_of(runs["terminated"], "terminated"), signal.SIGTERM)
        for name in ("finished", "failed", "interrupted", "out of memory"):
            stdin = runs[name].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()
        expected = {
            name: ("crashed" if name in ("failed", "killed", "out of memory") else "finished", name) for name in names
        }
        wait_for(lambda: states(client) == expected, 60)


def test_a_run_that_was_only_stopped_comes_back() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(container(sys.executable, "-m", "daf.server", "--port", "0", "--quiet"))
        wait_for((runtime_folder() / "sidecar.json").exists, 30)
        client, run = Client(), stack.enter_context(training("stopped"))
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        pid = pid_of(run, "stopped")
        wait_for(lambda: states(client) == {"stopped": ("live", "")})
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: states(client) == {"stopped": ("crashed", "killed")})
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: states(client) == {"stopped": ("live", "")})
        assert client.put_budget("16MiB", wait=10).state == "applied"
