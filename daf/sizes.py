"""Byte sizes as people write and read them. A leaf: every folder may import it, it imports nothing of DAF."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*")
_PERCENT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*")
_SHOWN = ("B", "KiB", "MiB", "GiB", "TiB")
HINT = "a size such as 2GiB, 512MB or 1073741824"


def parse_bytes(text: str) -> int:
    """Return the bytes that `text` names: `2GiB`, `512MB`, `1.5G`, `4096`.

    >>> parse_bytes("1.5KiB")
    1536
    """
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not {HINT}")
    return int(float(match[1]) * factor)


def parse_percent(text: str) -> float | None:
    """Return `50%` as 0.5, or None where `text` is no percentage."""
    match = _PERCENT.fullmatch(text)
    return float(match[1]) / 100 if match else None


def format_bytes(num_bytes: float) -> str:
    """Return the size with three digits in binary units, as the live page does.

    >>> format_bytes(1536), format_bytes(1023 * 1024)
    ('1.50 KiB', '1.00 MiB')
    """
    value, unit = float(num_bytes), 0
    while abs(value) >= (999.5 if unit else 1023.5) and unit < len(_SHOWN) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {_SHOWN[unit]}"
