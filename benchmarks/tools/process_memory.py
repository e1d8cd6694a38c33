"""How much memory this process has, as Linux tells it."""

from __future__ import annotations

import pathlib

_STATUS = pathlib.Path("/proc/self/status")
_CLEAR_REFS = pathlib.Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Return what is resident now."""
    return _status_bytes("VmRSS")


def resident_peak_bytes() -> int:
    """Return the highest resident size since the start or the last restart_peak()."""
    return _status_bytes("VmHWM")


def restart_peak() -> None:
    """Let the highest resident size start anew from the present one."""
    _CLEAR_REFS.write_text("5")


def _status_bytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
