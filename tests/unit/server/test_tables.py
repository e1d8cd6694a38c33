"""What `daf events` says of an event."""

from __future__ import annotations

from typing import Any

import pytest

from daf.server.tables import event_line

MIB = 1 << 20
ARENA = {"type": "arena", "slot_id": 3, "num_bytes": 2 * MIB, "value": 0.0, "text": ""}
CASES: dict[str, dict[str, Any]] = {
    "trim       2.00 MiB unused given back to the system": {**ARENA, "kind": "trim", "text": "unused"},
    "evict      2.00 MiB, 7 planes for tensor": {**ARENA, "kind": "evict", "value": 7.0, "text": "tensor"},
    "spill      2.00 MiB, slot 3": {**ARENA, "kind": "spill"},
    "pause": {**ARENA, "kind": "pause", "num_bytes": 0},
    "fidelity   gradient error 0.125": {**ARENA, "kind": "fidelity", "num_bytes": 0, "value": 0.125},
    "crashed    now crashed": {"type": "process", "what": "crashed", "state": "crashed"},
    "budget     2.00 MiB -> 1.00 MiB: refused, too little": {
        "type": "change", "what": "budget", "state": "refused", "before_bytes": 2 * MIB, "budget_bytes": MIB,
        "reason": "too little",
    },
    "lost       4 events were overwritten before they were read": {"type": "lost", "count": 4},
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_an_event_is_one_line_that_reads(text: str) -> None:
    line = event_line({"id": 1, "time": 0.0, "process": "12-34", **CASES[text]})
    assert line.partition("12-34")[2].strip() == text
