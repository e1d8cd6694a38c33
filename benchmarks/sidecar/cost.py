"""What being watched costs a training: the live page in a real Chromium and a real Prometheus, on and off in turn.

While nobody watches, all that watches stands still (SIGSTOP): turns of seconds cancel the drift of a shared machine as
turns of minutes would not. Two ways to share the machine:

    apart   the training has a core of its own, one thread; everything else has the others. What is left is DAF's part:
            the stats page that it writes, and the caches and memory that all share
    shared  the training has a thread for every core, and sidecar, browser and Prometheus take their time from it
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator

import psutil
from playwright.sync_api import sync_playwright

from benchmarks.page import FLAGS
from benchmarks.sidecar.scene import TRAINING, drain, quantile, ready, sidecar, wait_live
from daf.server import Client

SETTLE_SECONDS = 0.2
NUM_RESAMPLES = 2000


def cost_apart() -> dict[str, float]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("the training cannot have a core of its own: there is only one")
    return cost(training_cores=cores[:1], other_cores=cores[1:])


def cost_shared() -> dict[str, float]:
    cores = sorted(os.sched_getaffinity(0))
    return cost(training_cores=cores, other_cores=cores)


def cost(
    training_cores: list[int], other_cores: list[int], windows: int = 100, seconds: float = 2.0
) -> dict[str, float]:
    """Alternate windows with and without watchers over one training; compare the mean steps."""
    wall: dict[bool, list[float]] = {True: [], False: []}
    busy: dict[bool, list[float]] = {True: [], False: []}
    with contextlib.ExitStack() as stack:
        with on_cores(training_cores):
            child = stack.enter_context(ready(TRAINING, 3600, "64MiB", 0, len(training_cores)))
        lines = drain(child)
        stack.enter_context(on_cores(other_cores))
        watchers = stack.enter_context(all_watchers())
        for window in range(windows):
            is_watched = bool((window + 1) // 2 % 2)  # without, with, with, without: a drift falls on both alike
            watchers.watch() if is_watched else watchers.rest()
            time.sleep(SETTLE_SECONDS)
            first = len(lines)
            time.sleep(seconds)
            steps = [tuple(map(float, line.split())) for line in lines[first:-1]]
            wall[is_watched].append(statistics.fmean(step[0] for step in steps))
            busy[is_watched].append(statistics.fmean(step[1] for step in steps))
    return {
        "training_cores": len(training_cores),
        "wall_ms_without": statistics.median(wall[False]) * 1e3,
        **ratios("wall", wall),
        **ratios("processor", busy),
    }


def ratios(name: str, means: dict[bool, list[float]]) -> dict[str, float]:
    """Return with over without: the median of neighbouring windows, their middle half, and how sure the median is."""
    pairs = [a / b for a, b in zip(means[True], means[False], strict=True)]
    rng = random.Random(0)
    medians = [statistics.median(rng.choices(pairs, k=len(pairs))) for _ in range(NUM_RESAMPLES)]
    return {
        f"{name}_ratio": statistics.median(pairs),
        f"{name}_p25": quantile(pairs, 0.25),
        f"{name}_p75": quantile(pairs, 0.75),
        f"{name}_least": quantile(medians, 0.025),  # the median's 95% interval, by resampling
        f"{name}_most": quantile(medians, 0.975),
    }


@contextlib.contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclasses.dataclass(slots=True)
class Watchers:
    """All that watches, and how to start and stop it."""

    processes: list[psutil.Process]

    def watch(self) -> None:
        self._send(signal.SIGCONT)

    def rest(self) -> None:
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        for one in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # a browser ends some of its processes by itself
                one.send_signal(number)


@contextlib.contextmanager
def all_watchers() -> Iterator[Watchers]:
    with contextlib.ExitStack() as stack:
        beside, client = stack.enter_context(sidecar())
        wait_live(client, 1)
        scraper = stack.enter_context(prometheus(client))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        stack.callback(browser.close)
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(client.page_link())
        page.wait_for_selector("#slots tbody th")
        page.wait_for_timeout(3000)
        watchers = Watchers([beside, scraper, *browser_processes()])
        stack.callback(watchers.watch)  # what stands still cannot be closed
        yield watchers


def browser_processes() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [one for one in found if "chrom" in one.name()]


@contextlib.contextmanager
def prometheus(client: Client) -> Iterator[psutil.Process]:
    """Debian's, scraping every second."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        config = pathlib.Path(folder) / "prometheus.yml"
        target = client.page_link().split("/")[2]
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: daf, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb"]
        child = subprocess.Popen([*command, f"--web.listen-address={address}", "--log.level=error"])
        try:
            yield psutil.Process(child.pid)
        finally:
            child.send_signal(signal.SIGCONT)
            child.terminate()
            child.wait()
