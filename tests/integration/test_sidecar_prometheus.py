"""Debian's Prometheus scrapes the sidecar while a real model trains; every documented metric answers a query."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import textwrap
import urllib.parse
import urllib.request
from typing import Any

from daf.server.launch import running
from daf.server.metrics import EXPORTS, OWN
from daf.server.settings import Settings
from tests.integration.sidecar_tools import end, runtime_folder, sidecar_process, wait_for
from tests.tools import require_tool

TRAINING = """
import torch
import daf

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(6)])
with daf.Session(budget="24MiB", bits=4, name="scraped") as session:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Fidelity is measured now and then, on slots of some size: here one says so at once.
    session.arena.slot(4000, name="measured", bits=4.0, fidelity=0.99)
    while True:
        session.arena.step(0.01)
        loss = model(torch.randn(1024, 128)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def query(port: int, text: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(url, timeout=5) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def is_up(port: int) -> bool:
    try:
        return bool(query(port, 'daf_page_faults_total{run="scraped"} and daf_steps_total > 2'))
    except OSError:
        return False


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_prometheus_has_every_documented_metric_of_a_real_training(tmp_path: pathlib.Path) -> None:
    prometheus = require_tool("prometheus")
    with sidecar_process() as (_child, _client):
        where = running(Settings(runtime_folder()))
        assert where is not None
        config = tmp_path / "prometheus.yml"
        config.write_text(
            textwrap.dedent(f"""
            global: {{scrape_interval: 1s}}
            scrape_configs:
              - job_name: daf
                static_configs: [{{targets: ["{where.address.removeprefix("http://")}"]}}]
            """)
        )
        port = free_port()
        command = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        training = subprocess.Popen([sys.executable, "-c", TRAINING])
        scraper = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: is_up(port), 90)
            missing = [export.name for export in EXPORTS if not query(port, f'{export.name}{{run="scraped"}}')]
            missing += [name for name, _help in OWN if not query(port, name)]
            assert missing == []
            assert query(port, "scrape_samples_scraped > 40")
            assert training.poll() is None
        finally:
            end(scraper)
            end(training)
