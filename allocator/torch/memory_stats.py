"""Memory statistics in torch's own keys, for CPU and CUDA.

torch.cuda.memory_stats() answers nothing under a pluggable allocator, and torch has no such thing for the CPU. The
keys here are those of torch.cuda.memory_stats(); what has no meaning for DAF is 0. In DAF's terms:

| torch's key | what it is here |
|---|---|
| allocation, allocated_bytes | blocks that torch holds, rounded up to what they take |
| requested_bytes | as asked for (the CPU's front door is not told: as allocated) |
| active, active_bytes | allocated, and freed blocks that a CUDA stream may still use |
| reserved_bytes | memory that is resident for tensors: in use and cached |
| inactive_split, inactive_split_bytes | cached: resident, serving nobody |
| segment | 1 once there is an arena: it is one range of addresses |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daf.allocator._native import ffi, lib

_POOLS = ("small_pool", "large_pool")
_KINDS = ("current", "peak", "allocated", "freed")
_Count = dict[str, int]
_reset_points: dict[int, dict[str, int]] = {}  # by device (-1: CPU): totals when they were last reset
_CPU = -1


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the statistics of `device` ("cpu", "cuda:0", 0; default "cpu") in torch.cuda.memory_stats()'s keys."""
    index = _index(device)
    meter = _meter(index)
    stats: dict[str, int] = {}
    for key, pools, peak in (
        ("allocation", meter.blocks, meter.peak_blocks),
        ("allocated_bytes", meter.bytes, meter.peak_bytes),
        ("requested_bytes", meter.requested_bytes, meter.peak_requested_bytes),
    ):
        stats |= _flatten(key, _by_pool(pools, peak))
    stats |= _held(index, stats)
    stats |= {f"{key}.{kind}": 0 for key in ("oversize_allocations", "oversize_segments") for kind in _KINDS}
    stats |= {"num_ooms": int(meter.num_ooms), "num_alloc_retries": int(meter.num_retries), "max_split_size": -1}
    stats |= _device_calls(index)
    return dict(sorted(_since_reset(index, stats).items()))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start anew from what is in use now."""
    index = _index(device)
    if index == _CPU:
        lib.daf_door_reset_peaks()
    else:
        lib.daf_cuda_reset_peaks(index)
    if (arena := _arena(index)) != ffi.NULL:
        lib.daf_arena_reset_peaks(arena)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let the totals (allocated, freed, num_*) start anew from 0."""
    index = _index(device)
    _reset_points.pop(index, None)
    _reset_points[index] = {key: value for key, value in memory_stats(device).items() if _accumulates(key)}


def memory_allocated(device: Any = None) -> int:
    """Return the bytes that torch's tensors take now."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """Return the highest memory_allocated() since the start or the last reset_peak_memory_stats()."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def _index(device: Any) -> int:
    if device is None:
        return _CPU
    if isinstance(device, int):
        return device
    name = str(device)  # torch.device prints as it is written
    if name == "cpu":
        return _CPU
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise ValueError(f"{name!r} is not a device such as 'cpu', 'cuda:0' or 0")
    return int(number or 0)


def _meter(index: int) -> Any:
    meter = ffi.new("daf_meter_t *")
    if index == _CPU:
        lib.daf_door_meter(meter)
    else:
        lib.daf_cuda_meter(index, meter)
    return meter


def _arena(index: int) -> Any:
    return lib.daf_door_arena() if index == _CPU else lib.daf_cuda_arena(index)


def _by_pool(pools: Any, peak: int) -> dict[str, _Count]:
    counts = {
        name: {
            "current": int(pool.allocated - pool.freed),
            "peak": int(pool.peak),
            "allocated": int(pool.allocated),
            "freed": int(pool.freed),
        }
        for name, pool in zip(_POOLS, pools, strict=True)
    }
    both = {kind: sum(counts[name][kind] for name in _POOLS) for kind in _KINDS}
    return {"all": both | {"peak": int(peak)}, **counts}


def _flatten(key: str, by_pool: Mapping[str, _Count]) -> dict[str, int]:
    return {f"{key}.{pool}.{kind}": count[kind] for pool, count in by_pool.items() for kind in _KINDS}


def _held(index: int, stats: Mapping[str, int]) -> dict[str, int]:
    """What the arena knows and the front door does not: resident and cached bytes; pools are not told apart there."""
    values = _arena_values(index)
    pending_blocks, pending_bytes = _pending(index)
    reserved = values.get("tensor_bytes", 0) + values.get("cached_bytes", 0)
    held: dict[str, int] = {}
    for key, base, extra in (
        ("active", "allocation", pending_blocks),
        ("active_bytes", "allocated_bytes", pending_bytes),
    ):
        held |= {f"{key}.{rest}": stats[f"{base}.{rest}"] for rest in _rests()}
        held[f"{key}.all.current"] += extra
    held |= _single("reserved_bytes", reserved, values.get("peak_resident_bytes", reserved))
    held |= _single("inactive_split_bytes", values.get("cached_bytes", 0), 0)
    held |= _single("inactive_split", values.get("free_extents", 0), 0)
    return held | _single("segment", int(bool(values)), int(bool(values)))


def _single(key: str, current: int, peak: int) -> dict[str, int]:
    counts = dict.fromkeys((f"{key}.{rest}" for rest in _rests()), 0)
    return counts | {
        f"{key}.all.current": current,
        f"{key}.all.peak": max(peak, current),
        f"{key}.all.allocated": current,
    }


def _rests() -> list[str]:
    return [f"{pool}.{kind}" for pool in ("all", *_POOLS) for kind in _KINDS]


def _arena_values(index: int) -> dict[str, int]:
    arena = _arena(index)
    if arena == ffi.NULL:
        return {}
    fields, count = lib.daf_stats_fields(), lib.daf_stats_num_fields()
    cells = ffi.new("uint64_t[]", count)
    lib.daf_arena_stats(arena, cells)
    return {ffi.string(fields[i].name).decode(): int(cells[i]) for i in range(count) if fields[i].type == 0}


def _pending(index: int) -> tuple[int, int]:
    if index == _CPU:
        return 0, 0
    counts = ffi.new("daf_cuda_counts_t *")
    lib.daf_cuda_counts(index, counts)
    return int(counts.pending_blocks + counts.captured_blocks), int(counts.pending_bytes + counts.captured_bytes)


def _device_calls(index: int) -> dict[str, int]:
    values = _arena_values(index)
    return {
        "num_device_alloc": values.get("grows_total", 0),
        "num_device_free": values.get("trims_total", 0),
        "num_sync_all_streams": 0,
        "num_oom_rejections": 0,
    }


def _accumulates(key: str) -> bool:
    return key.startswith("num_") or key.endswith((".allocated", ".freed"))


def _since_reset(index: int, stats: dict[str, int]) -> dict[str, int]:
    start = _reset_points.get(index, {})
    # Totals that are only known as a current value (reserved, cached) may have gone down since.
    return {key: max(value - start[key], 0) if key in start else value for key, value in stats.items()}
