"""`daf top` in a real terminal: tmux shows it, tmux types into it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.integration.sidecar_tools import arena_process, sidecar_process, wait_for
from tests.tools import require_tool


class Terminal:
    """A tmux of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._tmux = [require_tool("tmux"), "-S", str(folder / "tmux.sock"), "-f", "/dev/null"]

    def run(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True, timeout=20).stdout

    def start(self, command: str) -> None:
        self.run("new-session", "-d", "-x", "140", "-y", "40", command)

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def type(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def is_alive(self) -> bool:
        return subprocess.run([*self._tmux, "has-session"], capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)


@pytest.mark.parametrize("with_sidecar", [True, False])
def test_top_shows_runs_and_a_key_changes_the_budget(tmp_path: pathlib.Path, with_sidecar: bool) -> None:
    terminal = Terminal(tmp_path)
    with arena_process(8 << 20) as child:
        beside = sidecar_process() if with_sidecar else None
        if beside:
            beside.__enter__()
        try:
            runtime = f"DAF_RUNTIME_DIR={os.environ['DAF_RUNTIME_DIR']}"
            terminal.start(f"{runtime} TERM=xterm-256color {sys.executable} -m daf.cli top --interval 0.3")
            wait_for(lambda: str(child.pid) in terminal.screen())
            screen = wait_for(lambda: "layer.3" in terminal.screen() and terminal.screen())
            assert "8.00 MiB" in screen
            assert ("from the sidecar" in screen) == with_sidecar
            terminal.type("b")
            wait_for(lambda: "new budget for" in terminal.screen())
            terminal.type("4MiB", "Enter")
            wait_for(lambda: "budget 4MiB: applied" in terminal.screen())
            wait_for(lambda: "4.00 MiB" in terminal.screen())
            terminal.type("q")
            wait_for(lambda: not terminal.is_alive())
        finally:
            terminal.close()
            if beside:
                beside.__exit__(None, None, None)
