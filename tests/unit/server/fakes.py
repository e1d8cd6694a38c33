"""Stats pages held in memory, and a sidecar's application over them, called without a socket."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.testclient import TestClient

from daf.server.app import create_app
from daf.server.fleet.state import Sidecar
from daf.server.settings import Settings

OTHER_FIELDS = (
    "peak_resident_bytes", "peak_held_bytes", "plane_0_bytes", "plane_1_bytes", "spilled_bytes", "stashes",
    "evictions_tensor_total", "evictions_budget_total", "evicted_bytes_total", "spills_total", "restores_total",
    "expected_error_ratio", "measured_error_ratio", "overhead_seconds",
    "budget_raises_total", "trimmed_bytes_total", "steps_total", "step_seconds_total", "faults_total",
)  # fmt: skip
TOKEN = "t" * 43
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class FakeIdentity:
    pid: int = 100
    start_time: int = 7
    name: str = "run"
    argv: Sequence[str] = ("train.py",)
    job_id: str = ""
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    local_world_size: int = 1
    launcher: str = ""
    host: str = "here"
    pod: str = ""
    namespace: str = ""
    device: str = "cpu"
    started_at: float = 1000.0
    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0"})


@dataclass
class FakeSlot:
    slot_id: int
    name: str = "layer"
    op: str = "linear"
    codec: str = "meansplit"
    bits: float = 4.0
    raw_bytes: int = 8000
    stored_bytes: int = 1000
    live_bytes: int = 1000
    importance: float = 1.0
    fidelity: float = 0.9


@dataclass
class FakeEvent:
    id: int
    kind: str = "evict"
    time_seconds: float = 1000.0
    slot_id: int = 1
    num_bytes: int = 4096
    value: float = 0.0
    text: str = ""


@dataclass
class FakeCell:
    zone: str
    num_bytes: int = 1 << 20
    live: float = 0.5
    cached: float = 0.25
    decommitted: float = 0.25


@dataclass
class FakeField:
    name: str
    kind: str = "gauge"
    unit: str = "bytes"
    help: str = "a number"


@dataclass
class FakeSnapshot:
    values: dict[str, float]
    slots: list[FakeSlot]
    heartbeat_age_seconds: float = 0.01


@dataclass
class FakeOutcome:
    state: str
    least_bytes: int = 0
    reason: str = ""


class FakePage:
    """A process that takes budgets of at least 1 MiB at once."""

    least_bytes = 1 << 20

    def __init__(self, **identity: Any) -> None:
        self.identity = FakeIdentity(**identity)
        self.path = pathlib.Path(f"/nowhere/{self.identity.pid}-{self.identity.start_time}.stats")
        self.now_state = "live"
        self.is_foreign = False
        self.values: dict[str, float] = {
            "budget_bytes": 1 << 30, "initial_budget_bytes": 1 << 30, "resident_bytes": 600 << 20,
            "tensor_bytes": 300 << 20, "plane_bytes": 100 << 20, "cached_bytes": 200 << 20,
            "saved_raw_bytes": 800 << 20, "evictions_total": 3,
            "last_step_saved_raw_bytes": 800 << 20, "last_step_saved_bytes": 100 << 20,
            "oom_total": 0, "fragmentation_ratio": 0.25, "step_seconds": 0.5, "held_bytes": 1 << 20, "is_paused": 0,
            **dict.fromkeys(OTHER_FIELDS, 1),
        }  # fmt: skip
        self.slots = [FakeSlot(1, "a", importance=1.0), FakeSlot(2, "b", importance=5.0)]
        self.all_events: list[FakeEvent] = []
        self.commands: list[tuple[str, int]] = []
        self.answers = True
        self.takes_steps = True  # else it refuses a budget when its step comes
        self.num_snapshots = 0
        self.num_lost = 0
        self.on_request: Callable[[], None] = lambda: None
        self.broken: Exception | None = None

    @property
    def fields(self) -> list[FakeField]:
        return [FakeField(name) for name in self.values]

    def state(self) -> str:
        return self.now_state

    def snapshot(self) -> FakeSnapshot:
        self.num_snapshots += 1
        if self.broken:
            raise self.broken
        return FakeSnapshot(dict(self.values), list(self.slots))

    def last_event_id(self) -> int:
        return self.all_events[-1].id if self.all_events else 0

    def events(self, since_id: int, skip: Collection[str] = ()) -> tuple[list[FakeEvent], int]:
        return [event for event in self.all_events if event.id > since_id and event.kind not in skip], self.num_lost

    def map(self) -> list[FakeCell]:
        gap = FakeCell("tensor", live=0.0, cached=0.0, decommitted=1.0)
        return [
            FakeCell("tensor"),
            FakeCell("tensor", live=1.0, cached=0.0),
            gap,
            FakeCell("tensor"),
            FakeCell("plane"),
        ]

    def request_budget(self, num_bytes: int) -> int:
        self.commands.append(("budget", num_bytes))
        self.on_request()
        if self.answers and num_bytes >= self.least_bytes:
            self.values["budget_bytes"] = num_bytes
        return len(self.commands)

    def request_budget_at(self, num_bytes: int, step: int) -> int:
        """Its step comes at once."""
        assert step > 0
        self.values["budget_bytes"] = num_bytes if self.takes_steps else self.values["budget_bytes"]
        self.commands.append(("budget", num_bytes if self.takes_steps else 0))
        return len(self.commands)

    def request_cancel(self, generation: int) -> int:
        self.commands.append(("cancel", generation))
        return len(self.commands)

    def close(self) -> None:
        self.broken = ValueError("closed")

    def request_pause(self, is_paused: bool) -> int:
        self.commands.append(("pause", int(is_paused)))
        return len(self.commands)

    def outcome(self, generation: int) -> FakeOutcome | None:
        if not self.answers:
            return None
        kind, number = self.commands[generation - 1]
        if kind == "budget" and number < self.least_bytes:
            return FakeOutcome("refused", self.least_bytes, "tensors alone take more")
        return FakeOutcome("applied")


class FakePages(list[FakePage]):
    """What `discover` finds."""

    def add(self, **identity: Any) -> FakePage:
        page = FakePage(**identity)
        self.append(page)
        return page


class Running:
    """A sidecar and a client of it."""

    def __init__(self, settings: Settings, pages: FakePages) -> None:
        self.pages = pages
        self.sidecar = Sidecar.build(settings, TOKEN, lambda: list(pages))
        self.sidecar.address = "http://127.0.0.1:8787"
        self.app = create_app(self.sidecar)
        self.client = TestClient(self.app, base_url="http://127.0.0.1:8787")

    def tick(self) -> None:
        self.sidecar.sampler.tick()

    def get(self, path: str, **query: Any) -> Any:
        self.tick()
        return self.client.get(path, params=query)

    def put_budget(self, budget: Any, **query: Any) -> Any:
        self.tick()
        return self.client.put("/v1/budget", json={"budget": budget}, params=query, headers=RIGHT)
