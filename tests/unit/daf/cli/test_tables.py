"""What `daf events` says of an event."""

from __future__ import annotations

from typing import Any

import pytest

from daf.cli.render.tables import event_line, process_table, show

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


def process(pid: int, state: str, ended_at: float | None, how: str = "") -> dict[str, object]:
    ending = {"how": how, "text": how} if how else None
    return {
        "id": f"{pid}-90210-2", "pid": pid, "name": "train.py", "state": state, "ending": ending, "rank": 0,
        "world_size": 1, "device": "cpu", "started_at": 100.0, "ended_at": ended_at,
    }  # fmt: skip


def test_the_live_come_first_with_ids_that_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        process(1, "crashed", 200.0, "out of memory"),
        process(2, "finished", 300.0, "interrupted"),
        process(3, "live", None),
    ]
    show(process_table(rows, {}))
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["3-90210-2", "2-90210-2", "1-90210-2"]
    assert "out of memory" in lines[2]
    assert " ago" in lines[1]
    assert " ago" not in lines[0]
