"""What is known to be wrong, by model and mode, with its cause: the quick tests leave it out, `make zoo` shows it."""

from __future__ import annotations

KNOWN: dict[str, dict[str, str]] = {}


def is_known(name: str, mode: str) -> bool:
    return mode in KNOWN.get(name, {})
