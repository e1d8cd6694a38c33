"""The ten figures of a session that are worth a line in a tracker, under names that trackers group by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Numbers = Mapping[str, Any]
PREFIX = "daf/"


def _field(name: str) -> Callable[[Numbers], float]:
    return lambda stats: float(stats[name])


def _ratio(stats: Numbers) -> float:
    stored = float(stats["last_step_saved_bytes"])
    return float(stats["last_step_saved_raw_bytes"]) / stored if stored else 1.0


FIGURES: dict[str, Callable[[Numbers], float]] = {
    "budget_bytes": _field("budget_bytes"),
    "resident_bytes": _field("resident_bytes"),
    "peak_resident_bytes": _field("peak_resident_bytes"),
    "tensor_bytes": _field("tensor_bytes"),
    "saved_bytes": _field("last_step_saved_bytes"),
    "saved_without_daf_bytes": _field("last_step_saved_raw_bytes"),
    "saved_ratio": _ratio,
    "evictions_total": _field("evictions_total"),
    "out_of_memory_total": _field("oom_total"),
    "step_seconds": _field("step_seconds"),
}


def figures(session: Any = None) -> dict[str, float]:
    """Return the figures of `session`, else of the one that is open in this process; empty where there is none."""
    from daf.session import active

    chosen = session or active()
    if chosen is None:
        return {}
    stats = chosen.stats()
    return {PREFIX + name: read(stats) for name, read in FIGURES.items()}
