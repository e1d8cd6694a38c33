"""A whole job in the terminal: its hosts, its ranks, and how far they are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from daf.cli.render.tables import OUTCOME_STYLES, STATE_STYLES, make_table
from daf.sizes import format_bytes

MAX_ROWS = 200  # of ranks; where there are more, those that stand out come first


def job_screen(job: Mapping[str, Any]) -> Group:
    """Return what `daf top --job` shows."""
    return Group(Text(headline(job), style="bold"), *_trouble(job), rank_table(job), Text(skew_line(job), style="dim"))


def headline(job: Mapping[str, Any]) -> str:
    told = f"job {job['id']}  {job['name']}  {job['num_live']} of {job['world_size']} ranks live"
    hosts = len(job["hosts"])
    return f"{told} on {hosts} host{'s' if hosts != 1 else ''}"


def _trouble(job: Mapping[str, Any]) -> list[Text]:
    lost = [f"host {host['host']} is unreachable: {host['error']}" for host in job["hosts"] if host["error"]]
    if job["num_missing"]:
        names = ", ".join(map(str, job["missing"][:10])) + (" ..." if job["num_missing"] > 10 else "")
        lost.append(f"no host told of rank {names}")
    return [Text(line, style="bold yellow") for line in lost]


def rank_table(job: Mapping[str, Any]) -> Table:
    table = make_table(
        ">RANK", "HOST", "STATE", ">BUDGET", ">RESIDENT", ">FULL", ">RATIO", ">ERROR", ">STEP", ">STEP TIME", ""
    )
    for row in _first(job):
        style = STATE_STYLES.get(row["state"], "bold yellow")
        table.add_row(
            str(row["rank"]),
            escape(row["host"][:24]),
            f"[{style}]{escape((row['ending'] or row['state'])[:40])}[/]",
            format_bytes(row["budget_bytes"]),
            format_bytes(row["resident_bytes"]),
            f"{row['budget_used_ratio']:.0%}",
            f"{row['compression_ratio']:.1f}x",
            f"{row['measured_error_ratio']:.1%}",
            str(row["steps"]),
            _as_ms(row["step_seconds"]),
            " ".join(name for name in ("slowest", "tightest") if job[name] == row["rank"] and job["num_live"] > 1),
        )
    return table


def _first(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    ranks: Sequence[Mapping[str, Any]] = job["ranks"]
    if len(ranks) <= MAX_ROWS:
        return list(ranks)
    marked = {job["slowest"], job["tightest"]}
    ordered = sorted(ranks, key=lambda row: (row["state"] == "live" and row["rank"] not in marked, row["rank"]))
    return ordered[:MAX_ROWS]


def skew_line(job: Mapping[str, Any]) -> str:
    """Return the least, the median and the most of what should be alike."""
    words: dict[str, Callable[[Any], str]] = {"resident_bytes": format_bytes, "step_seconds": _as_ms, "steps": str}
    parts = []
    for name, show in words.items():
        spread = job["skew"].get(name)
        if spread:
            least, median, most = (show(int(v) if name != "step_seconds" else v) for v in spread.values())
            parts.append(f"{name.removesuffix('_bytes').removesuffix('_seconds')} {least} / {median} / {most}")
    return "least / median / most: " + "; ".join(parts) if parts else ""


def _as_ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def job_outcome_table(outcomes: Sequence[Mapping[str, Any]]) -> Table:
    table = make_table(">RANK", "HOST", "STATE", ">BUDGET", ">WAS", "REASON")
    for row in outcomes:
        style = OUTCOME_STYLES.get(row["state"], "yellow")
        table.add_row(
            str(row["rank"]) if row["rank"] >= 0 else "?",
            escape(row["host"][:24]),
            f"[{style}]{row['state']}[/]",
            format_bytes(row["budget_bytes"]) if "budget_bytes" in row else "",
            format_bytes(row["before_bytes"]) if "before_bytes" in row else "",
            escape(row["reason"]),
        )
    return table
