from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from daf.server.access.tokens import read_token
from daf.server.process.launch import running
from daf.server.settings import Settings
from tests.integration.sidecar_tools import arena_process, runtime_folder, sidecar_process

HERE = pathlib.Path(__file__).parent


@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing_over_the_whole_document(tmp_path: pathlib.Path) -> None:
    with arena_process(8 << 20), sidecar_process("--unlimited-rate") as (_child, _client):
        where = running(Settings(runtime_folder()))
        assert where is not None
        token = read_token(pathlib.Path(where.token_path))
        tool = shutil.which("st", path=str(pathlib.Path(sys.executable).parent)) or "st"
        command = [tool, "run", f"{where.address}/v1/openapi.json", "-H", f"Authorization: Bearer {token}"]
        command += ["--max-examples", "8", "--request-timeout", "40", "--seed", "1", "--no-color"]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "sidecar_hooks.py")}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
