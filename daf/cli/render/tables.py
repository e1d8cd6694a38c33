"""What the terminal commands print: tables and lines, from the API's JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from daf.sizes import format_bytes

WIDE = 240
STATE_STYLES = {"live": "green", "finished": "dim", "crashed": "bold red", "unreadable": "yellow"}
OUTCOME_STYLES = {"applied": "green", "pending": "yellow", "refused": "bold red", "preview": "cyan"}
SLOT_EVENTS = frozenset({"spill", "restore"})


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
    """The live first, then what has ended, the latest first. The ids can be pasted as they are."""
    table = make_table(
        "ID", "NAME", "STATE", "AGE", ">RANK", "DEVICE", ">BUDGET", ">RESIDENT", ">RATIO", ">FRAG", ">EVICTED", ">STEP"
    )
    for one in sorted(processes, key=_by_age):
        found = stats.get(one["id"], {})
        values, derived = found.get("values", {}), found.get("derived", {})
        style = STATE_STYLES.get(one["state"], "")
        table.add_row(
            one["id"],
            one["name"][:24],
            f"[{style}]{escape(state_words(one)[:60])}[/]",
            age_words(one, time.time()),
            f"{one['rank']}/{one['world_size']}",
            one["device"],
            *figure_cells(values, derived),
        )
    return table


def _by_age(process: Mapping[str, Any]) -> tuple[bool, float, int]:
    ended_at = process.get("ended_at") or 0.0
    return process["state"] != "live", -ended_at or -process["started_at"], process["rank"]


def state_words(process: Mapping[str, Any]) -> str:
    """Return the state, of an ended process how it ended.

    >>> state_words({"state": "crashed", "ending": {"text": "failed: ValueError: no such file"}})
    'failed: ValueError: no such file'
    """
    ending = process.get("ending")
    return str(ending["text"]) if ending else str(process["state"])


def age_words(process: Mapping[str, Any], now: float) -> str:
    """Return for how long a process has run, or how long ago it ended."""
    if process.get("ended_at"):
        return f"{duration(now - process['ended_at'])} ago"
    return duration(now - process["started_at"])


def duration(seconds: float) -> str:
    """Return a length of time in its largest unit.

    >>> duration(7300)
    '2 h'
    """
    for unit_seconds, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


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
    table = make_table("PROCESS", "OUTCOME", ">BEFORE", ">BUDGET", ">RESIDENT", ">TOOK", "")
    for one in outcomes:
        sizes = [format_bytes(one[name]) for name in ("before_bytes", "budget_bytes", "resident_bytes")]
        style = OUTCOME_STYLES.get(one["state"], "")
        took = f"{1000 * one['seconds']:.0f} ms"
        table.add_row(one["process"], f"[{style}]{one['state']}[/]", *sizes, took, _remark(one))
    return table


def _remark(outcome: Mapping[str, Any]) -> str:
    found = outcome.get("preview")
    if not found:
        is_too_small = outcome["state"] == "refused" and outcome["least_bytes"] > outcome["budget_bytes"]
        least = f" (the least is {format_bytes(outcome['least_bytes'])})" if is_too_small else ""
        return f"{outcome['reason']}{least}"
    if not found["freed_bytes"]:
        return "it fits: nothing would be evicted"
    text = f"would free {format_bytes(found['cached_bytes'])} cached, evict {format_bytes(found['evicted_bytes'])}"
    text += f" from {len(found['slots'])} slots"
    return text + (f", still {format_bytes(found['short_bytes'])} short" if found["short_bytes"] else "")


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as one line: time, process, kind, and what there is to say about it."""
    moment = time.strftime("%H:%M:%S", time.localtime(event.get("time", 0)))
    kind = str(event.get("kind") or event.get("what") or event["type"])
    said = {"change": _change_said, "arena": _arena_said, "lost": _lost_said}.get(str(event["type"]), _state_said)
    return f"{moment}  {event.get('process', '-'):<14}  {kind:<9}  {said(event)}".rstrip()


def _change_said(event: Mapping[str, Any]) -> str:
    if "before_bytes" not in event:
        return str(event.get("state", ""))
    text = f"{format_bytes(event['before_bytes'])} -> {format_bytes(event['budget_bytes'])}: {event.get('state', '')}"
    return f"{text}, {event['reason']}" if event.get("reason") else text


def _arena_said(event: Mapping[str, Any]) -> str:
    """Whatever of size, slot, number and text the event has."""
    parts = [format_bytes(event["num_bytes"])] if event.get("num_bytes") else []
    if event.get("kind") in SLOT_EVENTS:
        parts.append(f"slot {event['slot_id']}")
    if event.get("kind") == "evict":
        parts.append(f"{event['value']:g} planes for {event['text']}")
    elif event.get("kind") == "fidelity":
        parts.append(f"gradient error {event['value']:.3f}")
    elif event.get("kind") == "trim":
        parts[-1:] = [f"{format_bytes(event['num_bytes'])} {event['text']} given back to the system"]
    elif event.get("text"):
        parts.append(str(event["text"]))
    return ", ".join(parts)


def _lost_said(event: Mapping[str, Any]) -> str:
    return f"{event.get('count', 0)} events were overwritten before they were read"


def _state_said(event: Mapping[str, Any]) -> str:
    if event.get("ending"):
        return str(event["ending"]["text"])
    return f"now {event['state']}" if event.get("state") else ""
