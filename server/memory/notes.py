"""What the training side noticed and wrote beside its stats page, in `<pid>-<start>.notes`."""

from __future__ import annotations

import json
import pathlib
from typing import Any

SUFFIX = ".notes"
MAX_BYTES = 1 << 20


def read_notes(page_path: pathlib.Path) -> dict[str, Any]:
    """Return what was noticed: growth in bytes a step, containers that gain tensors, usual and slow steps."""
    path = page_path.with_suffix(SUFFIX)
    try:
        if path.stat().st_size > MAX_BYTES or path.is_symlink():
            return {}
        found = json.loads(path.read_text())
        containers = [
            {"name": str(it["name"])[:200], "place": str(it["place"])[:200], "has_graph": bool(it["has_graph"])}
            for it in found["containers"]
        ]
        return {
            "growth_bytes_per_step": float(found["growth_bytes_per_step"]),
            "steps": int(found["steps"]),
            "usual_seconds": float(found["usual_seconds"]),
            "slow_seconds": float(found["slow_seconds"]),
            "containers": containers,
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
