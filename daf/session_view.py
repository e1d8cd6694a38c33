"""A session as text and as a small table for notebooks."""

from __future__ import annotations

import contextlib
import html
import sys
from typing import Any

from daf.sizes import format_bytes

_BAR = (
    '<div style="width:20em;background:#8884;border-radius:3px">'
    '<div style="width:{share:.0f}%;background:{colour};height:.8em;border-radius:3px"></div></div>'
)
_FULL_SHARE = 90.0  # per cent of the budget from which the bar warns


def rows(session: Any) -> list[tuple[str, str]]:
    """Return what a person asks first, as (question, answer)."""
    stats = session.stats()
    plain, stored = stats["last_step_saved_raw_bytes"], stats["last_step_saved_bytes"]
    saved = f"{format_bytes(stored)} instead of {format_bytes(plain)}" if plain else "none yet"
    return [
        ("state", "open" if session.is_open else "closed"),
        ("memory", f"{format_bytes(stats['resident_bytes'])} of {format_bytes(stats['budget_bytes'])}"),
        ("highest", format_bytes(stats["peak_resident_bytes"])),
        ("saved activations, last step", saved),
        ("steps", str(stats["steps_total"])),
        ("planes evicted", str(stats["evictions_total"])),
    ]


def as_text(session: Any) -> str:
    if not session.has_stats:
        return f"<daf.Session: not started, budget {session.config.budget}>"
    return f"<daf.Session: {', '.join(f'{name} {value}' for name, value in rows(session))}>"


def as_html(session: Any) -> str:
    if not session.has_stats:
        return html.escape(as_text(session))
    stats = session.stats()
    share = min(100.0, 100.0 * stats["resident_bytes"] / max(1, stats["budget_bytes"]))
    pairs = ((html.escape(name), html.escape(value)) for name, value in rows(session))
    cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in pairs)
    bar = _BAR.format(share=share, colour="#d55e00" if share > _FULL_SHARE else "#0072b2")
    address = dashboard_address() if session.is_open else None
    link = f'<a href="{html.escape(address)}" target="_blank">dashboard</a>' if address else ""
    return f"<div><b>DAF</b> {link}{bar}<table>{cells}</table></div>"


def dashboard_address() -> str | None:
    """Return the address of the sidecar that runs, if one does."""
    with contextlib.suppress(Exception):  # a table is shown with or without its link
        from daf.allocator.stats.runtime_dir import runtime_dir
        from daf.server.process.runfile import is_held, read_whereabouts
        from daf.server.settings import Settings

        settings = Settings(runtime_dir())
        found = read_whereabouts(settings.address_path) if is_held(settings.lock_path) else None
        return found.address if found else None
    return None


def is_interactive() -> bool:
    """Whether a person types into this process: a notebook, IPython or the interpreter's prompt."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
