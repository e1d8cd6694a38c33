"""A run's memory as a snapshot that PyTorch's memory viewer opens (https://pytorch.org/memory_viz, `_memory_viz`).

The sidecar sees shares of cells and bytes by slot, not single blocks, so this is what can be told from outside: the
tensor zone cell by cell, the plane zone slot by slot, each slot named as the frame that holds its bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TENSOR_ADDRESS, PLANE_ADDRESS = 1 << 40, 1 << 41
PICKLE_PROTOCOL = 4  # what the viewer reads


def torch_snapshot(
    values: Mapping[str, float], slots: Sequence[Any], zones: Sequence[Any], oom: Iterable[Any]
) -> bytes:
    """Return the pickle. `zones` are those of the map; `oom` are the run's out-of-memory events."""
    segments = [*_tensor_segments(zones), _plane_segment(values, slots)]
    trace = [entry for segment in segments for entry in _allocs(segment)]
    trace += [_entry("oom", 0, int(event["num_bytes"]), device_free=0) for event in oom]
    snapshot = {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_ALLOCATOR": "daf"},
        "external_annotations": [],
    }
    return pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL)


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
                blocks.append(_block(start, num_bytes, state, "tensor zone"))
                start += num_bytes
    return segments


def _plane_segment(values: Mapping[str, float], slots: Sequence[Any]) -> dict[str, Any]:
    blocks, address = [], PLANE_ADDRESS
    for slot in slots:
        if slot.live_bytes > 0:
            name = f"{slot.name} ({slot.op}, {slot.codec}, {slot.bits:.1f} bits)"
            blocks.append(_block(address, int(slot.live_bytes), "active_allocated", name))
            address += int(slot.live_bytes)
    rest = int(values.get("plane_bytes", 0)) - (address - PLANE_ADDRESS)
    if rest > 0:
        blocks.append(_block(address, rest, "active_allocated", "stashes of no slot, headers, page ends"))
    return _segment(blocks or [_block(address, 1, "inactive", "empty")])


def _block(address: int, num_bytes: int, state: str, name: str) -> dict[str, Any]:
    frame = {"filename": "daf", "line": 0, "name": name}
    return {"address": address, "size": num_bytes, "requested_size": num_bytes, "state": state, "frames": [frame]}


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
