"""Debian's Prometheus scrapes the sidecar while a real model trains; every documented metric answers a query."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from daf.cli.demo.command import SCRIPT
from daf.server import Client
from daf.server.metrics import EXPORTS, OWN
from daf.server.process.launch import running
from daf.server.settings import Settings
from tests.integration.sidecar_tools import end, runtime_folder, sidecar_process, wait_for
from tests.tools import require_tool

# The demo's own training script, which knows nothing of DAF, on a small model.
COMMAND = [str(SCRIPT), "--steps=1000000", "--batch=4", "--context=64", "--width=96", "--layers=2"]
SETTINGS = {"PYTORCH_ALLOCATOR": "daf", "DAF_BUDGET": "160MiB", "DAF_NAME": "scraped", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def training() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, *COMMAND], stdout=subprocess.DEVNULL, env={**os.environ, **SETTINGS})
    try:
        yield child
    finally:
        end(child)


@contextlib.contextmanager
def prometheus(target: str, folder: pathlib.Path) -> Iterator[int]:
    """A Prometheus that scrapes `target` every second; yields its port."""
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(
        textwrap.dedent(f"""
        global: {{scrape_interval: 1s}}
        scrape_configs:
          - job_name: daf
            static_configs: [{{targets: ["{target}"]}}]
        """)
    )
    command = [require_tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        end(child)


def query(port: int, text: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(url, timeout=5) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def is_measured(port: int) -> bool:
    """Whether Prometheus has seen the training step, and a fidelity: an op a step, from the second step on."""
    try:
        return bool(query(port, 'daf_fidelity_ratio{run="scraped"} > 0 and daf_steps_total > 2'))
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_prometheus_has_every_documented_metric_of_a_real_training(tmp_path: pathlib.Path) -> None:
    with sidecar_process() as (_child, client), training() as trained:
        where = running(Settings(runtime_folder()))
        assert where is not None
        with prometheus(where.address.removeprefix("http://"), tmp_path) as port:
            wait_for(lambda: trained.poll() is not None or is_measured(port), 120)
            assert trained.poll() is None
            missing = [export.name for export in EXPORTS if not query(port, f'{export.name}{{run="scraped"}}')]
            missing += [name for name, _help in OWN if not query(port, name)]
            assert missing == []
            (lowest,) = query(port, 'daf_fidelity_ratio{run="scraped"}')
            assert 0.1 < float(lowest["value"][1]) <= 1
        assert_no_complaint(client)


def assert_no_complaint(client: Client) -> None:
    """promtool finds nothing to say about what the sidecar serves at this moment."""
    command = [require_tool("promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=client.raw("/metrics"), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
