"""A run's memory as a snapshot that PyTorch's memory viewer opens (https://pytorch.org/memory_viz, `_memory_viz`).

A run that was profiled has told its blocks, with the stacks that asked for them, and its last requests: these are the
tensor zone and the trace. Without a profile the sidecar sees only shares of cells. The plane zone is shown slot by
slot, each slot named as the frame that holds its bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TENSOR_ADDRESS, PLANE_ADDRESS = 1 << 40, 1 << 41
PICKLE_PROTOCOL = 4  # what the viewer reads
SEGMENT_GAP = 1 << 20  # blocks further apart than this lie in segments of their own


def torch_snapshot(
    values: Mapping[str, float],
    slots: Sequence[Any],
    zones: Sequence[Any],
    oom: Iterable[Any],
    profile: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the pickle. `zones` are those of the map; `oom` are the run's out-of-memory events."""
    told = _tensor_segments(zones) if profile is None else _profiled_segments(profile)
    segments = [*told, _plane_segment(values, slots)]
    if profile is None:
        trace = [entry for segment in segments for entry in _allocs(segment)]
    else:
        trace = [*_allocs(segments[-1]), *_profiled_trace(profile)]
    trace += [_entry("oom", 0, int(event["num_bytes"]), device_free=0) for event in oom]
    snapshot = {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_ALLOCATOR": "daf"},
        "external_annotations": [],
    }
    return pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL)


def _frames(profile: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """The frames of a stack as torch writes them: innermost first."""
    stack = profile["stacks"].get(str(number))
    if stack is None:
        return [{"filename": "daf", "line": 0, "name": "not looked at"}]
    frames = [{"filename": file, "line": line, "name": name} for file, line, name in reversed(stack["frames"])]
    place = " ".join(part for part in (stack["op"], stack["module"] and f"in {stack['module']}") if part)
    return [{"filename": "daf", "line": 0, "name": place}, *frames] if place else frames


def _profiled_segments(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks that live at the end, in their real places, in segments of all that the run is known to have used."""
    live = sorted(profile["blocks"])
    segments = []
    for begin, end in _ranges(row[:2] for row in (*live, *profile["ring"])):
        blocks, at = [], begin
        for address, num_bytes, _micros, stack in (row for row in live if begin <= row[0] < end):
            if address > at:
                blocks.append(_block(at, address - at, "inactive", []))
            blocks.append(_block(address, num_bytes, "active_allocated", _frames(profile, stack)))
            at = address + num_bytes
        if at < end:
            blocks.append(_block(at, end - at, "inactive", []))
        segments.append(_segment(blocks))
    return segments


def _ranges(blocks: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """The address ranges that the blocks cover, with small gaps between them left out."""
    found: list[tuple[int, int]] = []
    for address, num_bytes in sorted(tuple(block) for block in blocks):
        if found and address - found[-1][1] <= SEGMENT_GAP:
            found[-1] = (found[-1][0], max(found[-1][1], address + num_bytes))
        else:
            found.append((address, address + num_bytes))
    return found


def _profiled_trace(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ring, and before it the blocks that live from before it began."""
    ring = sorted(profile["ring"], key=lambda row: row[2])
    asked = {(address, micros) for address, _, micros, _, is_free in ring if not is_free}
    earlier = [row for row in profile["blocks"] if (row[0], row[2]) not in asked]
    entries = [_requested(profile, [*row, 0]) for row in sorted(earlier, key=lambda row: row[2])]
    for row in ring:
        entries.append(_requested(profile, row))
        if row[4]:
            entries.append({**entries[-1], "action": "free_completed"})
    return entries


def _requested(profile: Mapping[str, Any], row: Sequence[int]) -> dict[str, Any]:
    address, num_bytes, micros, stack, is_free = row
    action = "free_requested" if is_free else "alloc"
    return _entry(action, address, num_bytes, frames=_frames(profile, stack), time_us=micros)


def _tensor_segments(zones: Sequence[Any]) -> list[dict[str, Any]]:
    """One segment for each run of cells with memory behind them; what lies between has none."""
    segments: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for zone in zones:
        if zone["name"] != "tensor":
            continue
        for index, (live, cached) in enumerate(zip([*zone["live"], 0.0], [*zone["cached"], 0.0], strict=True)):
            start = TENSOR_ADDRESS + index * zone["cell_bytes"]
            parts = (("active_allocated", live), ("inactive", cached))
            found = [(state, int(share * zone["cell_bytes"])) for state, share in parts if share > 0]
            if not found and blocks:
                segments.append(_segment(blocks))
                blocks = []
            for state, num_bytes in found:
                blocks.append(_block(start, num_bytes, state, _named("tensor zone")))
                start += num_bytes
    return segments


def _plane_segment(values: Mapping[str, float], slots: Sequence[Any]) -> dict[str, Any]:
    blocks, address = [], PLANE_ADDRESS
    for slot in slots:
        if slot.live_bytes > 0:
            name = f"{slot.name} ({slot.op}, {slot.codec}, {slot.bits:.1f} bits)"
            blocks.append(_block(address, int(slot.live_bytes), "active_allocated", _named(name)))
            address += int(slot.live_bytes)
    rest = int(values.get("plane_bytes", 0)) - (address - PLANE_ADDRESS)
    if rest > 0:
        blocks.append(_block(address, rest, "active_allocated", _named("stashes of no slot, headers, page ends")))
    return _segment(blocks or [_block(address, 1, "inactive", _named("empty"))])


def _named(name: str) -> list[dict[str, Any]]:
    return [{"filename": "daf", "line": 0, "name": name}]


def _block(address: int, num_bytes: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": num_bytes, "requested_size": num_bytes, "state": state, "frames": frames}


def _segment(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0,
        "address": blocks[0]["address"],
        "total_size": sum(block["size"] for block in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "allocated_size": active,
        "active_size": active,
        "requested_size": active,
        "frames": [],
        "blocks": blocks,
    }


def _allocs(segment: Mapping[str, Any]) -> list[dict[str, Any]]:
    live = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
    first = _entry("segment_alloc", segment["address"], segment["total_size"])
    return [first, *(_entry("alloc", b["address"], b["size"], frames=b["frames"]) for b in live)]


def _entry(action: str, address: int, num_bytes: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": num_bytes, "stream": 0, "frames": [], "time_us": 0, **more}
