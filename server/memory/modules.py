"""Memory by module: parameters, gradients and optimizer state as the training side counted them (beside the stats page,
in `<pid>-<start>.modules`), activations as the slots say."""

from __future__ import annotations

import json
import pathlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from daf.server.memory.tree import build

SUFFIX = ".modules"
MAX_BYTES = 16 << 20
COUNTED = ("parameters", "gradients", "optimizer")


def read_modules(page_path: pathlib.Path) -> dict[str, dict[str, int]]:
    """Return bytes by module and kind; empty where the run has told nothing."""
    path = page_path.with_suffix(SUFFIX)
    try:
        if path.stat().st_size > MAX_BYTES or path.is_symlink():
            return {}
        found = json.loads(path.read_text())
        return {str(name): {kind: int(row[kind]) for kind in COUNTED} for name, row in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def table(counted: Mapping[str, Mapping[str, int]], slots: Sequence[Any]) -> list[dict[str, Any]]:
    """Return one row for each module that has anything: `module`, COUNTED, `activations` and what they are in plain."""
    rows: dict[str, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys((*COUNTED, "activations", "activations_raw"), 0)
    )
    for name, row in counted.items():
        rows[name].update(row)
    for slot in slots:
        row = rows[_module_of(slot.name)]
        row["activations"] += int(slot.stored_bytes)
        row["activations_raw"] += int(slot.raw_bytes)
    return [{"module": name, **row} for name, row in sorted(rows.items()) if any(row.values())]


def module_tree(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows as a tree: by the parts of the modules' names, then by kind."""
    parts = []
    for row in rows:
        names = str(row["module"]).split(".") if row["module"] else ["outside modules"]
        parts += [([*names, kind], int(row[kind])) for kind in (*COUNTED, "activations")]
    return build("model", parts)


def _module_of(slot_name: str) -> str:
    """`Net.layer.0:2` is the second save of `Net.layer.0`, `Net.layer.0@2:1` of its second call."""
    path = slot_name.rsplit(":", 1)[0].removeprefix("after ")
    return path.split("@", 1)[0]
