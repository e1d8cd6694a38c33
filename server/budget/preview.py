"""What a smaller budget would take away, estimated from the outside.

The arena evicts planes by importance per byte. The sidecar sees slots, not planes, so it replays the same rule on
equal planes: each slot's stored bytes divided by its width, each plane that is lost costing four times the one before
it, which is what halving the number of levels does to a squared error.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from daf.server.fleet.figures import least_budget
from daf.server.models import Preview, SlotPreview

FLOOR_BITS = 1


def preview(values: Mapping[str, float], slots: Sequence[Any], budget_bytes: int, peak_bytes: int = 0) -> Preview:
    """Return what a budget of `budget_bytes` would drop: first what is only cached, then planes.

    Memory breathes with every step. It is the peaks that have to fit, so nothing of what one moment shows is looked at
    once there was a step: `peak_bytes` is the most that was resident of late, and the page tells how much of it was in
    use at once in the last step.
    """
    in_use = int(values.get("last_step_live_bytes", 0))
    if not in_use:  # before the end of the first step there is only this moment
        in_use = int(values.get("resident_bytes", 0) - values.get("cached_bytes", 0))
        peak_bytes = max(peak_bytes, int(values.get("resident_bytes", 0)))
    short = least_budget(values) - budget_bytes
    excess = max(0, short, max(peak_bytes, in_use) - budget_bytes)
    cached = excess - min(excess, max(0, in_use - budget_bytes))
    changed = _evict(slots, excess - cached)
    evicted = sum(slot.freed_bytes for slot in changed)
    return Preview(
        freed_bytes=excess,
        cached_bytes=cached,
        evicted_bytes=evicted,
        short_bytes=max(0, short, excess - cached - evicted),
        slots=sorted(changed, key=lambda slot: -slot.freed_bytes),
    )


def _evict(slots: Sequence[Any], wanted_bytes: int) -> list[SlotPreview]:
    heap = [entry for slot in slots if (entry := _next_plane(slot, slot.bits)) is not None]
    heapq.heapify(heap)
    lost: dict[int, tuple[Any, int]] = {}
    while heap and wanted_bytes > 0:
        _cost, slot_id, slot, bits, plane_bytes = heapq.heappop(heap)
        wanted_bytes -= plane_bytes
        lost[slot_id] = (slot, lost.get(slot_id, (slot, 0))[1] + plane_bytes)
        following = _next_plane(slot, bits - 1)
        if following is not None:
            heapq.heappush(heap, following)
    return [_shown(slot, freed) for slot, freed in lost.values()]


def _next_plane(slot: Any, bits: float) -> tuple[float, int, Any, float, int] | None:
    """Return the slot's lowest plane as (cost per byte, id, slot, bits now, bytes), or None at the floor."""
    plane_bytes = int(held_bytes(slot) / max(slot.bits, 1.0))
    if bits <= FLOOR_BITS or plane_bytes <= 0:
        return None
    return slot.importance * 4.0 ** (slot.bits - bits) / plane_bytes, slot.slot_id, slot, bits, plane_bytes


def held_bytes(slot: Any) -> int:
    """What the slot holds when it holds anything: between backward and forward that is nothing, and no answer."""
    return int(max(slot.live_bytes, slot.stored_bytes))


def _shown(slot: Any, freed_bytes: int) -> SlotPreview:
    lost_bits = freed_bytes * max(slot.bits, 1.0) / held_bytes(slot)
    after = max(float(FLOOR_BITS), slot.bits - lost_bits)
    return SlotPreview(
        slot=slot.slot_id, name=slot.name, bits=slot.bits, bits_after=round(after, 2), freed_bytes=freed_bytes
    )
