"""A run as a trace that Perfetto and Chrome open: its figures as counters, its events as marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from daf.server.fleet.history import Series

# Counter tracks: name, and the series that are stacked in it.
TRACKS = (
    ("memory", ("tensor_bytes", "plane_bytes", "cached_bytes")),
    ("budget", ("budget_bytes",)),
    ("resident", ("resident_bytes",)),
    ("outside DAF", ("outside_bytes",)),
    ("fragmentation", ("fragmentation_ratio",)),
    ("evictions", ("evictions_total",)),
    ("step seconds", ("step_seconds",)),
)


def perfetto_trace(pid: int, name: str, series: Series, events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the Chrome trace document; moments are microseconds since 1970."""
    head = {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    counters = [
        {"ph": "C", "name": track, "pid": pid, "ts": moment * 1e6, "args": {f: series.columns[f][i] for f in fields}}
        for track, fields in TRACKS
        if all(field in series.columns for field in fields)
        for i, moment in enumerate(series.times)
    ]
    return {"displayTimeUnit": "ms", "traceEvents": [head, *counters, *(_mark(pid, event) for event in events)]}


def _mark(pid: int, event: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(event.get("kind") or event.get("what") or event["type"])
    args = {key: value for key, value in event.items() if key not in ("time", "process")}
    return {"ph": "i", "s": "p", "name": kind, "pid": pid, "tid": 0, "ts": event.get("time", 0) * 1e6, "args": args}
