"""The shapes of what is said of jobs, and between their sidecars."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from daf.server.models import MAX_BYTES, BudgetChange

MAX_STEP = 2**53


class JobBudget(BudgetChange):
    """What every rank shall have; a percentage is of what each started with."""


class Phase(BudgetChange):
    """One phase of a change: asked for by the sidecar that carries it out, of those on the other hosts."""

    phase: Literal["ask", "schedule", "outcome", "cancel", "restore"]
    step: int = Field(default=0, ge=0, le=MAX_STEP)
    tickets: dict[str, int] = Field(default_factory=dict, description="By process: a command's number, or bytes.")
    force: bool = False


class Row(BaseModel):
    """What became of it on one rank."""

    model_config = ConfigDict(extra="allow")
    rank: int
    host: str
    process: str
    state: str
    reason: str


class PhaseOutcome(BaseModel):
    outcomes: list[Row]


class JobOutcome(BaseModel):
    state: Literal["applied", "preview", "refused"]
    step: int = Field(description="In which all changed; 0 where none was to.")
    outcomes: list[Row]


class Host(BaseModel):
    host: str
    address: str
    state: Literal["reachable", "unreachable"]
    error: str
    seen_at: float | None = Field(description="When it last answered.")


class Rank(BaseModel):
    rank: int
    host: str
    pod: str
    process: str
    device: str
    state: str = Field(description="As of a process; unreachable: these are the last figures that its host told.")
    ending: str
    world_size: int
    budget_bytes: int = Field(le=MAX_BYTES)
    resident_bytes: int
    least_bytes: int
    budget_used_ratio: float
    compression_ratio: float
    measured_error_ratio: float
    steps: int
    step_seconds: float
    heartbeat_age_seconds: float


class RanksHere(BaseModel):
    id: str
    ranks: list[Rank]


class Job(RanksHere):
    name: str
    time: float
    state: str
    world_size: int
    num_live: int
    num_missing: int
    missing: list[int] = Field(description="Ranks that no host told of, at most a thousand.")
    slowest: int | None = Field(description="The rank with the longest step.")
    tightest: int | None = Field(description="The rank whose budget is fullest.")
    skew: dict[str, Any] = Field(description="min, median and max over the live ranks, by figure.")
    hosts: list[Host]


class Target(BaseModel):
    targets: list[str]
    labels: dict[str, str]
