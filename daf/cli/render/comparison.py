"""Two runs side by side, as rows of text: a terminal's table and one HTML file show the same."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from daf.cli.render.tables import make_table, state_words
from daf.sizes import format_bytes

Row = tuple[str, str, str, str]
Document = Mapping[str, Any]
COLUMNS = ("", "first", "second", "second / first")
KINDS = ("parameters", "gradients", "optimizer", "exact", "compressed", "temporaries", "cached")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>DAF: two runs</title><style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ margin: 2rem auto; max-width: 60rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ padding: 0.35rem 0.6rem; text-align: right; border-bottom: 1px solid #8884; overflow-wrap: anywhere; }}
th:first-child {{ text-align: left; font-weight: 500; }}
</style></head><body><h1>Two runs</h1><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></body></html>
"""


def rows(first: Document, second: Document) -> list[Row]:
    """Return what there is to compare; a figure that neither run has is left out."""
    found: list[Row] = [
        ("run", _name(first), _name(second), ""),
        ("state", state_words(first["process"]), state_words(second["process"]), ""),
    ]
    both = (first["stats"], second["stats"])
    for label, read, show in _FIGURES:
        a, b = (read(stats) for stats in both)
        if a or b:
            found.append((label, show(a), show(b), f"{b / a:.2f}" if a else ""))
    if first.get("loss") is not None or second.get("loss") is not None:
        found.append(("last loss that it printed", _loss(first), _loss(second), ""))
    found.append(("verdict", _verdict(first), _verdict(second), ""))
    return found


def _value(name: str) -> Callable[[Document], float]:
    return lambda stats: float(stats["values"].get(name, 0.0))


def _kind(name: str) -> Callable[[Document], float]:
    return lambda stats: float(stats.get("kinds", {}).get(name, 0))


def _mean_step(stats: Document) -> float:
    steps = stats["values"].get("steps_total", 0)
    return float(stats["values"].get("step_seconds_total", 0.0) / steps) if steps else 0.0


_Show = Callable[[float], str]
_FIGURES: tuple[tuple[str, Callable[[Document], float], _Show], ...] = (
    ("budget", _value("budget_bytes"), format_bytes),
    ("peak resident", _value("peak_resident_bytes"), format_bytes),
    ("plain would need", lambda stats: float(stats["derived"].get("plain_bytes", 0.0)), format_bytes),
    *((kind, _kind(kind), format_bytes) for kind in KINDS),
    ("activations, if kept exact", _value("peak_saved_raw_bytes"), format_bytes),
    ("activations, as stored", _value("peak_saved_bytes"), format_bytes),
    ("gradient error, expected", _value("expected_error_ratio"), lambda x: f"{x:.2%}"),
    ("gradient error, measured", _value("measured_error_ratio"), lambda x: f"{x:.2%}"),
    ("mean step", _mean_step, lambda x: f"{1000 * x:.0f} ms"),
    ("steps", _value("steps_total"), lambda x: f"{x:.0f}"),
    ("planes evicted", _value("evictions_total"), lambda x: f"{x:.0f}"),
    ("out of memory", _value("oom_total"), lambda x: f"{x:.0f}"),
)


def _loss(document: Document) -> str:
    loss = document.get("loss")
    return "" if loss is None else f"{loss:.6g}"


def _name(document: Document) -> str:
    process = document["process"]
    return f"{process['name'] or 'run'} {process['id']}"


def _verdict(document: Document) -> str:
    found = document.get("verdicts") or []
    return str(found[0]["text"]) if found else ""


def table(found: Sequence[Row]) -> Table:
    shown = make_table("", ">FIRST", ">SECOND", ">RATIO")
    for column in shown.columns:
        column.no_wrap, column.overflow = False, "fold"
    for row in found:
        shown.add_row(*row)
    return shown


def as_html(found: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in COLUMNS)
    body = "".join(_html_row(*row) for row in found)
    return PAGE.format(head=head, body=body)


def _html_row(label: str, *cells: str) -> str:
    shown = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{html.escape(label)}</th>{shown}</tr>'
