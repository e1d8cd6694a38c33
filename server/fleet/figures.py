"""The numbers that the page, the terminal and Prometheus show, worked out once, here, from what a stats page holds."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping

import psutil

from daf.server.fleet.kinds import kinds, plain_bytes
from daf.server.fleet.members import LIVE, Member, Reading


def derived(values: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios that people ask for.

    compression_ratio: the most that plain training would hold for the saved activations, over the most that is held.
    saved_bytes: the same as a difference. Both of the last whole step, for within a step activations come and go, and
    what one moment says is chance; before there is one, of the run's peaks.
    budget_used_ratio: how full the budget is.
    plain_bytes: what plain training would need at the peak of a step.
    """
    which = "last_step" if values.get("last_step_saved_bytes") else "peak"
    raw, held = values.get(f"{which}_saved_raw_bytes", 0), values.get(f"{which}_saved_bytes", 0)
    budget, resident = values.get("budget_bytes", 0), values.get("resident_bytes", 0)
    return {
        "compression_ratio": raw / held if held > 0 else 0.0,
        "budget_used_ratio": resident / budget if budget > 0 else 0.0,
        "saved_bytes": max(0.0, raw - held),
        "plain_bytes": float(plain_bytes(values)),
    }


def least_budget(values: Mapping[str, float]) -> int:
    """Return the smallest budget that the process would take: what it cannot drop now or could not in its last step."""
    return int(max(values.get("held_bytes", 0), values.get("last_step_held_bytes", 0)))


def process_memory(member: Member) -> dict[str, int]:
    """Return what the operating system says the process takes; empty for one that is gone or not readable."""
    if member.state != LIVE or member.is_foreign:
        return {}
    with contextlib.suppress(psutil.Error, OSError):
        info = _process(member.page.identity.pid, member.id).memory_info()
        return {"process_resident_bytes": int(info.rss), "process_virtual_bytes": int(info.vms)}
    return {}


@functools.lru_cache(maxsize=256)
def _process(pid: int, _member_id: str) -> psutil.Process:
    return psutil.Process(pid)


def figures(member: Member, reading: Reading) -> dict[str, object]:
    """Return one member's numbers as `/v1/stats` and the stream show them."""
    memory = process_memory(member)
    values = {**reading.values, **memory}
    if memory:
        outside = memory["process_resident_bytes"] - reading.values.get("resident_bytes", 0)
        values["outside_bytes"] = max(0.0, outside)
    return {
        "process": member.id,
        "state": member.state,
        "time": round(reading.time, 3),
        "heartbeat_age_seconds": round(reading.heartbeat_age_seconds, 3),
        "values": values,
        "kinds": kinds(reading.values) | {"outside": int(values.get("outside_bytes", 0))},
        "derived": {name: round(value, 6) for name, value in derived(reading.values).items()},
    }
