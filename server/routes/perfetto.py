"""A run as a trace that Perfetto and Chrome open: its figures as counters, its events as marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from daf.server.fleet.history import Series
from daf.server.fleet.kinds import kinds

# Counter tracks beside memory by kind: name, and the series that are stacked in it.
TRACKS = (
    ("memory", ("tensor_bytes", "plane_bytes", "cached_bytes")),
    ("budget", ("budget_bytes",)),
    ("resident", ("resident_bytes",)),
    ("outside DAF", ("outside_bytes",)),
    ("fragmentation", ("fragmentation_ratio",)),
    ("evictions", ("evictions_total",)),
    ("step seconds", ("step_seconds",)),
)


def perfetto_trace(
    pid: int,
    name: str,
    series: Series,
    events: Iterable[Mapping[str, Any]],
    profile: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the Chrome trace document; moments are microseconds since 1970. A profile adds tensors one by one."""
    head = {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    counters = [
        {"ph": "C", "name": track, "pid": pid, "ts": moment * 1e6, "args": {f: series.columns[f][i] for f in fields}}
        for track, fields in TRACKS
        if all(field in series.columns for field in fields)
        for i, moment in enumerate(series.times)
    ]
    by_kind = [
        {"ph": "C", "name": "memory by kind", "pid": pid, "ts": moment * 1e6, "args": kinds(_values_at(series, i))}
        for i, moment in enumerate(series.times)
        if "tensor_bytes" in series.columns
    ]
    marks = [_mark(pid, event) for event in events]
    found = [head, *counters, *by_kind, *_tensors(pid, profile or {}), *marks]
    return {"displayTimeUnit": "ms", "traceEvents": found}


def _values_at(series: Series, i: int) -> dict[str, float]:
    return {name: column[i] or 0.0 for name, column in series.columns.items()}


def _tensors(pid: int, profile: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The bytes of the tensors that were followed, at each of the last requests and frees."""
    ring = sorted(profile.get("ring", ()), key=lambda row: row[2])
    change = sum(-num_bytes if is_free else num_bytes for _, num_bytes, _, _, is_free in ring)
    live = sum(num_bytes for _, num_bytes, *_ in profile.get("blocks", ())) - change
    for _, num_bytes, micros, _, is_free in ring:
        live += -num_bytes if is_free else num_bytes
        yield {"ph": "C", "name": "tensors", "pid": pid, "ts": micros, "args": {"live_bytes": max(0, live)}}


def _mark(pid: int, event: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(event.get("kind") or event.get("what") or event["type"])
    args = {key: value for key, value in event.items() if key not in ("time", "process")}
    return {"ph": "i", "s": "p", "name": kind, "pid": pid, "tid": 0, "ts": event.get("time", 0) * 1e6, "args": args}
