"""What the terminal commands print: tables and lines, from the API's JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from daf.sizes import format_bytes

WIDE = 240
STATE_STYLES = {"live": "green", "finished": "dim", "crashed": "bold red", "unreadable": "yellow"}
OUTCOME_STYLES = {"applied": "green", "pending": "yellow", "refused": "bold red", "preview": "cyan"}


def show(table: Table, empty: str = "Nothing to show.") -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)  # a pipe has no width: nothing is cut off
    console.print(table if table.row_count else empty)


def make_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if column.startswith(">") else "left", no_wrap=bool(name))
    return table


def process_table(processes: Sequence[Mapping[str, Any]], stats: Mapping[str, Mapping[str, Any]]) -> Table:
    table = make_table(
        "JOB",
        ">RANK",
        ">PID",
        "NAME",
        "STATE",
        "DEVICE",
        ">BUDGET",
        ">RESIDENT",
        ">RATIO",
        ">FRAG",
        ">EVICTIONS",
        ">STEP",
    )
    for one in processes:
        found = stats.get(one["id"], {})
        values, derived = found.get("values", {}), found.get("derived", {})
        style = STATE_STYLES.get(one["state"], "")
        table.add_row(
            one["job"][:24],
            f"{one['rank']}/{one['world_size']}",
            str(one["pid"]),
            one["name"][:24],
            f"[{style}]{one['state']}[/]",
            one["device"],
            *figure_cells(values, derived),
        )
    return table


def figure_cells(values: Mapping[str, float], derived: Mapping[str, float]) -> list[str]:
    """Return budget, resident, ratio, fragmentation, evictions and step time as text."""
    return [
        format_bytes(values.get("budget_bytes", 0)),
        format_bytes(values.get("resident_bytes", 0)),
        f"{derived.get('compression_ratio', 0):.1f}x",
        f"{100 * values.get('fragmentation_ratio', 0):.0f}%",
        f"{int(values.get('evictions_total', 0))}",
        f"{1000 * values.get('step_seconds', 0):.0f} ms",
    ]


def budget_table(processes: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table("PROCESS", "JOB", ">RANK", ">BUDGET", ">RESIDENT", ">LEAST", "COMPRESSION")
    for one in processes:
        sizes = [format_bytes(one[name]) for name in ("budget_bytes", "resident_bytes", "least_bytes")]
        paused = "paused" if one["paused"] else "running"
        table.add_row(one["process"], one["job"][:24], str(one["rank"]), *sizes, paused)
    return table


def outcome_table(outcomes: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table("PROCESS", "OUTCOME", ">BEFORE", ">BUDGET", ">RESIDENT", ">AFTER", "")
    for one in outcomes:
        sizes = [format_bytes(one[name]) for name in ("before_bytes", "budget_bytes", "resident_bytes")]
        style = OUTCOME_STYLES.get(one["state"], "")
        took = f"{1000 * one['seconds']:.0f} ms"
        table.add_row(one["process"], f"[{style}]{one['state']}[/]", *sizes, took, _remark(one))
    return table


def _remark(outcome: Mapping[str, Any]) -> str:
    found = outcome.get("preview")
    if not found:
        return str(outcome["reason"])
    text = f"would free {format_bytes(found['cached_bytes'])} cached, evict {format_bytes(found['evicted_bytes'])}"
    text += f" from {len(found['slots'])} slots"
    return text + (f", still {format_bytes(found['short_bytes'])} short" if found["short_bytes"] else "")


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as one line: time, process, kind, and the rest as name=value."""
    known = {"id", "type", "kind", "time", "process", "arena_id"}
    moment = time.strftime("%H:%M:%S", time.localtime(event.get("time", 0)))
    kind = str(event.get("kind") or event.get("what") or event["type"])
    rest = [
        f"{name}={_shown(name, value)}"
        for name, value in event.items()
        if name not in known and value not in ("", None)
    ]
    return f"{moment} {event.get('process', '-'):<18} {kind:<12} {' '.join(rest)}"


def _shown(name: str, value: object) -> str:
    return (
        format_bytes(value).replace(" ", "")
        if name.endswith("bytes") and isinstance(value, int | float)
        else str(value)
    )
