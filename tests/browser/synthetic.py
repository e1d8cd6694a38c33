"""A process that is not there: a stats page made of numbers, for what a real run would take hours to show."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from daf.allocator.stats.reader import Cell, SlotRow
from daf.server.fleet.members import Member, Reading
from daf.server.fleet.state import Sidecar

MIB = 1024 * 1024


@dataclass
class SyntheticPage:
    """A stats page whose figures are functions of the clock."""

    path: pathlib.Path
    name: str = "gpt-small"
    num_slots: int = 40
    budget_bytes: int = 512 * MIB
    started_at: float = field(default_factory=time.time)
    fields: tuple[Any, ...] = ()
    lives: str = "live"
    job_id: str = ""
    rank: int = -1
    world_size: int = 1
    error_ratio: float = 0.12
    is_paused: bool = False
    is_foreign: bool = False

    @property
    def identity(self) -> Any:
        return SimpleNamespace(
            pid=int(self.path.stem.split("-")[0]),
            start_time=1,
            name=self.name,
            argv=["train.py"],
            job_id=self.job_id,
            rank=self.rank,
            local_rank=self.rank,
            world_size=self.world_size,
            device="cpu",
            host="",
            pod="",
            namespace="",
            launcher="",
            started_at=self.started_at,
            versions={"daf": "0"},
        )

    def state(self) -> str:
        return self.lives

    def values_at(self, now: float) -> dict[str, float]:
        age = now - self.started_at
        wave = 0.5 + 0.5 * math.sin(age / 3)
        planes = {f"plane_{k}_bytes": int((18 - 3 * k) * MIB * wave) for k in range(5)}
        tensors, cached = int((210 + 20 * math.sin(age / 7)) * MIB), int(30 * MIB * (1 - wave))
        total = sum(planes.values())
        return {
            "budget_bytes": self.budget_bytes,
            "resident_bytes": tensors + total + cached,
            "tensor_bytes": tensors,
            "plane_bytes": total,
            "cached_bytes": cached,
            "saved_raw_bytes": int(total * 9.7),
            "outside_bytes": 300 * MIB,
            "held_bytes": 230 * MIB,
            "fragmentation_ratio": 0.04 + 0.03 * wave,
            "evictions_total": int(age / 20) * 7,
            "oom_total": 0,
            "peak_resident_bytes": 280 * MIB,
            "peak_saved_raw_bytes": 582 * MIB,
            "peak_saved_bytes": 60 * MIB,
            "steps_total": int(age / 1.4),
            "step_seconds": 1.4 + 0.05 * wave,
            "parameter_bytes": 60 * MIB,
            "gradient_bytes": 60 * MIB,
            "optimizer_bytes": 60 * MIB,
            "saved_kept_bytes": 10 * MIB,
            "last_step_live_bytes": 270 * MIB,
            "last_step_saved_raw_bytes": 582 * MIB,
            "last_step_saved_bytes": 60 * MIB,
            "expected_error_ratio": self.error_ratio,
            "measured_error_ratio": self.error_ratio,
            "overhead_seconds": 0.2,
            "is_paused": int(self.is_paused),
            **planes,
        }

    def snapshot(self) -> Any:
        now = time.time()
        rows = [self.row(i, now) for i in range(self.num_slots)]
        return SimpleNamespace(values=self.values_at(now), slots=rows, heartbeat_age_seconds=0.02)

    def row(self, i: int, now: float) -> SlotRow:
        bits = float(1 + (i * 7 + int(now / 10) * (i % 3 == 0)) % 5)
        raw = (1 + i % 9) * MIB
        return SlotRow(
            slot_id=i,
            name=f"transformer.h.{i // 8}.{('attn.c_attn', 'mlp.c_fc', 'mlp.act', 'ln_2')[i % 4]}",
            op=("addmm", "gelu", "layer_norm", "softmax")[i % 4],
            codec="meansplit",
            bits=bits,
            importance=10.0 ** -(i % 5),
            fidelity=0.99 - 0.001 * (i % 40),
            raw_bytes=raw,
            stored_bytes=int(raw * bits / 30),
        )

    def last_event_id(self) -> int:
        return 0

    def events(self, _since_id: int, skip: Collection[str] = ()) -> tuple[list[Any], int]:  # noqa: ARG002
        return [], 0

    def map(self) -> list[Cell]:
        lives = [(i // 37 % 4) / 3 for i in range(812)]
        zones = ["tensor"] * 512 + ["plane"] * 300
        return [Cell(z, MIB // 4, live, (1 - live) / 2, (1 - live) / 2) for z, live in zip(zones, lives, strict=True)]  # type: ignore[arg-type]

    def request_budget(self, num_bytes: int) -> int:
        self.budget_bytes = num_bytes
        return 1

    def request_pause(self, is_paused: bool) -> int:
        self.is_paused = is_paused
        return 1

    def outcome(self, _generation: int) -> Any:
        return SimpleNamespace(state="applied", least_bytes=0, reason="")


def fill_history(sidecar: Sidecar, member: Member, page: SyntheticPage, *, seconds: float) -> None:
    """Give `member` the history that a run of `seconds` would have."""
    now = time.time()
    page.started_at = now - seconds
    history = sidecar.fleet.history_of(member, Reading(now, page.values_at(now), [], 0.0))
    for i in range(int(seconds / 10)):
        then = now - seconds + 10 * i
        history.add(then, page.values_at(then))
        if i % 5 == 0:
            member.widths.add(
                then, {row.slot_id: row.bits for row in (page.row(k, then) for k in range(page.num_slots))}
            )
