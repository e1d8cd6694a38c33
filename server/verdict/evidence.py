"""What rules look at, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from daf.server.fleet.kinds import plain_bytes

LEVELS = ("good", "note", "warning", "trouble")
MIN_STEPS = 3  # before that the plan is not in force, and peaks are those of the first step
EXACT_ERROR = 1e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding.

    text       the sentence, with its reason and the next step
    evidence   the numbers that it is made of, by the names of the stats page where they are such
    action     what a button could do: {"budget_bytes": 60817408}, or nothing
    """

    rule: str
    level: str
    text: str
    evidence: dict[str, float] = field(default_factory=dict)
    action: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one run. `history` has columns over time, oldest first; it may be empty.

    notes   what the training side noticed: growth, and the containers that gain tensors
    lines   of the allocation profile, those that hold most first
    """

    values: Mapping[str, float]
    slots: Sequence[Any] = ()
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    machine_bytes: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Mapping[str, Any]] = ()

    def value(self, name: str) -> float:
        return float(self.values.get(name, 0.0))

    @property
    def has_steps(self) -> bool:
        return self.value("steps_total") >= MIN_STEPS

    @property
    def live_bytes(self) -> float:
        """The most that was in use at once in the last step."""
        return self.value("last_step_live_bytes") or self.value("peak_live_bytes")

    @property
    def fixed_bytes(self) -> float:
        """What does not grow with the batch: parameters, gradients, optimizer state."""
        return sum(self.value(name) for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"))

    @property
    def error(self) -> float:
        """The gradient's relative error: measured where it was, else what the plan expects."""
        return self.value("measured_error_ratio") or self.value("expected_error_ratio")

    @property
    def lossy_slots(self) -> list[Any]:
        """The slots that are stored in fewer bits than they have."""
        return [row for row in self.slots if 0 < row.bits < 16 and 0 < row.stored_bytes < 0.7 * row.raw_bytes]

    @property
    def is_exact(self) -> bool:
        is_coarse = self.error > EXACT_ERROR or (self.value("plane_bytes") > 0 and bool(self.lossy_slots))
        return not is_coarse and not self.value("evictions_total")

    @property
    def plain_bytes(self) -> int:
        return plain_bytes(self.values)

    def column(self, name: str) -> list[float]:
        return list(self.history.get(name, ()))
