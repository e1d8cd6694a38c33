"""A real browser, a real sidecar, a real training run."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from daf.server.app import create_app
from daf.server.fleet.state import Sidecar
from daf.server.settings import Settings
from tests.browser.synthetic import SyntheticPage, fill_history
from tests.tools import require_tool

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TRAINING = pathlib.Path(__file__).with_name("training.py")


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return the first true answer of `what`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")  # not longer: Playwright's event loop runs in this thread and is in other tests' way
def browser() -> Iterator[Browser]:
    chromium = require_tool("chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM_FLAGS))
        yield found
        found.close()


@dataclass
class Tab:
    """One tab and everything in it that should not have been."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    is_strict: bool = True

    def open(self, url: str) -> Page:
        host = re.match(r"(?:\w+://[^/]+|file:)", url)
        assert host
        own = (host[0], "data:", "blob:")
        self.page.on("request", lambda r: r.url.startswith(own) or self.complaints.append(f"asked for {r.url}"))
        self.page.goto(url)
        return self.page


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Opens tabs; none of them may log an error or ask another host, unless it is told not to be strict."""
    tabs: list[Tab] = []

    def make(width: int = 1280, height: int = 900, scheme: str = "light") -> Tab:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        tab = Tab(context.new_page())
        tab.page.on("console", lambda message: message.type == "error" and tab.complaints.append(message.text))
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tabs.append(tab)
        return tab

    yield make
    for tab in tabs:
        tab.page.context.close()
    assert [tab.complaints for tab in tabs if tab.is_strict and tab.complaints] == []


class Serving:
    """`daf serve` as a process of its own, on a port that stays the same over restarts."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.environment = {**os.environ, "DAF_RUNTIME_DIR": str(folder)}
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "daf.server", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout
        self.address = self.process.stdout.readline().split()[1]
        self.link = self.process.stdout.readline().split()[1]
        self.port = int(self.address.rpartition(":")[2])

    def get(self, path: str, **query: Any) -> Any:
        answer = httpx.get(f"{self.address}/v1/{path}", params=query)
        answer.raise_for_status()
        return answer.json()

    def new_link(self) -> str:
        """A link that may change things: each is good once."""
        folder = pathlib.Path(self.environment["DAF_RUNTIME_DIR"])
        token = (folder / "sidecar.token").read_text().strip()
        answer = httpx.post(f"{self.address}/v1/links", headers={"Authorization": f"Bearer {token}"})
        return str(answer.json()["url"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    require_tool("chromium")
    found = Serving(tmp_path_factory.mktemp("runtime"))
    yield found
    found.kill()


@dataclass
class Training:
    process: subprocess.Popen[bytes]
    id: str


@pytest.fixture(scope="module")
def trainings(serving: Serving) -> Iterator[list[Training]]:
    """Two training runs beside the sidecar, both seen to save activations."""
    command = [sys.executable, str(TRAINING), "64MiB"]
    started = [subprocess.Popen(command, env=serving.environment, stdout=subprocess.DEVNULL) for _ in range(2)]

    def seen(pid: int) -> str | None:
        found = [p["id"] for p in serving.get("processes")["processes"] if p["pid"] == pid]
        stats = serving.get("stats", process=found[0])["processes"] if found else []
        return found[0] if stats and stats[0]["values"]["reserves_total"] > 0 else None

    try:
        yield [Training(process, wait_for(functools.partial(seen, process.pid), 120)) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


@dataclass
class Imagined:
    """A sidecar over synthetic pages, in a thread of this process."""

    address: str
    sidecar: Sidecar
    pages: list[SyntheticPage]

    @property
    def link(self) -> str:
        return f"{self.address}/#code={self.sidecar.keyring.new_code()}"


@pytest.fixture
def imagine(tmp_path: pathlib.Path) -> Iterator[Callable[..., Imagined]]:
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(pages: list[SyntheticPage], seconds: float = 600, host: str = "127.0.0.1") -> Imagined:
        sidecar = Sidecar.build(Settings(tmp_path, host), "t" * 43, lambda: pages, keeps_history=False)
        sidecar.fleet.refresh()
        for page in pages:
            fill_history(sidecar, sidecar.fleet.members[page.path.stem], page, seconds=seconds)
        config = uvicorn.Config(
            create_app(sidecar), port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        servers.append((server, thread))
        wait_for(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        sidecar.address = f"http://127.0.0.1:{port}"
        return Imagined(sidecar.address, sidecar, pages)

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def one_run(tmp_path: pathlib.Path) -> list[SyntheticPage]:
    return [SyntheticPage(tmp_path / "4242-1.stats")]
