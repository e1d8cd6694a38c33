from __future__ import annotations

from typing import Any

from daf.cli.demo.command import Falls, Outcome, _rows

MIB = 1 << 20


class Budgets:
    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def put_budget(self, num_bytes: int, *, pid: int) -> str:
        self.asked.append((num_bytes, pid))
        return "applied"


def test_the_demos_budget_falls_at_a_third_and_at_two_thirds_of_the_steps() -> None:
    client: Any = Budgets()
    falls = Falls(client, 30, need_bytes=100 * MIB)
    for step in range(1, 31):
        falls(step, 7)
    assert client.asked == [(70 * MIB, 7), (50 * MIB, 7)]
    assert falls.changes == ["step 10: budget 70.0 MiB: applied", "step 20: budget 50.0 MiB: applied"]


def test_a_demo_of_few_steps_leaves_the_budget_alone() -> None:
    client: Any = Budgets()
    falls = Falls(client, 9, need_bytes=100 * MIB)
    for step in range(1, 8):
        falls(step, 7)
    assert client.asked == []


def test_the_demos_table_calls_exact_what_cost_nothing() -> None:
    plain = Outcome(2.5, 100 * MIB, 0.1, 50 * MIB)
    falling = Outcome(2.51, 50 * MIB, 0.11, 5 * MIB, gradient_error=0.04)
    rows = {row[0]: row[1:] for row in _rows(plain, plain, falling)}
    assert rows["gradient error"] == ("exact", "exact", "4.0%")
    assert rows["peak memory over imports"] == ("100 MiB", "100 MiB (1.00)", "50.0 MiB (0.50)")
