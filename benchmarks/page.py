"""The live page under load: 2,000 layers and 6 hours of history in a real Chromium.

`python -m benchmarks.page`. The sidecar is real and in a process of its own; the run behind it is synthetic, since six
hours are long. Main thread time is what Chromium itself counts: `busy` by the clock, `work` by the thread's own CPU
time, which other programs on the machine do not blow up.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from benchmarks.tools import report

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TASKS = ("TaskDuration", "ScriptDuration")


def serve(num_slots: int, hours: float) -> None:
    """Run a sidecar over one synthetic run; prints its address."""
    import uvicorn

    from daf.server.app import create_app
    from daf.server.fleet.state import Sidecar
    from daf.server.settings import Limits, Settings
    from tests.browser.synthetic import SyntheticPage, fill_history

    with tempfile.TemporaryDirectory() as folder:
        run = SyntheticPage(pathlib.Path(folder) / "4242-1.stats", num_slots=num_slots)
        settings = Settings(runtime_dir=pathlib.Path(folder), limits=Limits())
        sidecar = Sidecar.build(settings, "t" * 43, lambda: [run], keeps_history=False)
        sidecar.fleet.refresh()
        fill_history(sidecar, sidecar.fleet.members["4242-1"], run, seconds=3600 * hours)
        config = uvicorn.Config(create_app(sidecar), port=0, log_config=None, lifespan="on")
        server = uvicorn.Server(config)
        socket = config.bind_socket()
        print(f"http://127.0.0.1:{socket.getsockname()[1]}", flush=True)
        server.run(sockets=[socket])


@contextlib.contextmanager
def sidecar(num_slots: int, hours: float) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.page", "--serve", "--slots", str(num_slots), "--hours", str(hours)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def first_paint(browser: Browser, address: str) -> dict[str, float]:
    """Open the page in a fresh profile; return seconds from navigation to each thing a person waits for."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("#memory .u-over", state="attached")
    chart = page.evaluate("performance.now()")
    page.wait_for_selector("#slots tbody th")
    table = page.evaluate("performance.now()")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.context.close()
    return {"first paint": paint / 1000, "chart": chart / 1000, "layers": table / 1000}


def counters(session: CDPSession) -> dict[str, float]:
    return {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}


def milliseconds_a_second(session: CDPSession, clock: str, seconds: float) -> dict[str, float]:
    session.send("Performance.disable")
    session.send("Performance.enable", {"timeDomain": clock})
    before, began = counters(session), time.monotonic()
    time.sleep(seconds)
    after, took = counters(session), time.monotonic() - began
    return {name: 1000 * (after[name] - before[name]) / took for name in TASKS}


def heap_mb(session: CDPSession) -> float:
    session.send("HeapProfiler.collectGarbage")
    return counters(session)["JSHeapUsedSize"] / 1e6


def updates(page: Page, seconds: float) -> list[report.Row]:
    """Return the main thread's load and the tab's memory while figures stream in."""
    session = page.context.new_cdp_session(page)
    rows = []
    for part in range(3):
        busy = milliseconds_a_second(session, "timeTicks", seconds / 6)
        work = milliseconds_a_second(session, "threadTicks", seconds / 6)
        row = {"part": part + 1, "busy ms/s": busy["TaskDuration"], "work ms/s": work["TaskDuration"]}
        rows.append({**row, "script ms/s": work["ScriptDuration"], "heap MB": heap_mb(session)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--slots", type=int, default=2000)
    parser.add_argument("--hours", type=float, default=6)
    parser.add_argument("--repeats", type=int, default=5, help="of the first paint; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60, help="of watching updates; default: %(default)s")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.slots, arguments.hours)
        return
    with sidecar(arguments.slots, arguments.hours) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        paints = [first_paint(browser, address) for _ in range(arguments.repeats)]
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(address)
        page.get_by_role("button", name="6 h").click()
        page.wait_for_timeout(3000)
        rows = updates(page, arguments.seconds)
        browser.close()
    opened = [_spread(name, [paint[name] for paint in paints]) for name in paints[0]]
    print(f"{arguments.slots} layers, {arguments.hours:g} h of history, {arguments.repeats} openings")
    print(report.format_table(opened, {"what": str, "median s": _number, "lowest s": _number, "highest s": _number}))
    print("\nwhile figures stream in")
    print(report.format_table(rows, {"part": str, **dict.fromkeys(list(rows[0])[1:], _number)}))
    if arguments.json:
        report.write_json(arguments.json, [*opened, *rows])


def _number(value: float) -> str:
    return f"{value:.2f}"


def _spread(name: str, values: list[float]) -> report.Row:
    return {"what": name, "median s": statistics.median(values), "lowest s": min(values), "highest s": max(values)}


if __name__ == "__main__":
    main()
