"""The demo ends with a report that says what its table says."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

from playwright.sync_api import expect

from daf.server import Client
from tests.browser.conftest import Tab

LABELS = ["held-out loss", "gradient error", "saved activations at the end", "peak memory over imports", "median step"]


def test_the_demos_report_opens_from_disk_and_repeats_its_table(
    tmp_path: pathlib.Path, new_tab: Callable[..., Tab]
) -> None:
    path = tmp_path / "demo.html"
    command = [sys.executable, "-m", "daf.cli.demo", "--steps", "2", "--report", str(path)]
    environment = {**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
    finally:
        os.kill(Client.find().get("/healthz")["pid"], 15)  # the sidecar that the demo started
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    printed = [[cell.strip() for cell in row] for row in rows]
    assert [row[0] for row in printed] == LABELS
    page = new_tab().open(path.as_uri())
    expect(page.locator("h1")).to_have_text("Finished")
    shown = page.locator("#tables tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((c) => c.textContent))"
    )
    assert shown == printed
