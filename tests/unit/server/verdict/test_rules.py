"""Every rule has a run that makes it speak, and a healthy run makes none speak but the good ones."""

from __future__ import annotations

from typing import Any

import pytest

from daf.server.verdict import RULES, Evidence, judge
from tests.unit.server.fakes import RIGHT, FakePages, FakeSlot, Running

MIB = 1 << 20
HEALTHY = {
    "steps_total": 100, "budget_bytes": 150 * MIB, "last_step_live_bytes": 55 * MIB, "parameter_bytes": 5 * MIB,
    "gradient_bytes": 5 * MIB, "optimizer_bytes": 10 * MIB, "last_step_saved_bytes": 30 * MIB,
    "last_step_saved_raw_bytes": 30 * MIB, "fragmentation_ratio": 0.1, "cached_bytes": 2 * MIB,
}  # fmt: skip
FEW_BITS = [FakeSlot(i, bits=1.0, raw_bytes=8000, stored_bytes=300) for i in range(23)]
STEPS = {"steps_total": [float(i) for i in range(5, 45)]}
CASES: dict[str, tuple[dict[str, float], list[FakeSlot], dict[str, list[float]], str]] = {
    "did_not_fit": ({"oom_total": 2, "peak_held_bytes": 200 * MIB}, [], {}, "at least 210 MiB"),
    "memory_grows": (
        {},
        [],
        {**STEPS, "last_step_live_bytes": [(50 + 3 * i) * float(MIB) for i in range(40)]},
        "3.00 MiB a step",
    ),
    "is_never_read": (
        {},
        [FakeSlot(7, op="never read", name="Teacher.fc:1", raw_bytes=9 * MIB, stored_bytes=9 * MIB)],
        {},
        "9.00 MiB are saved for a backward that never reads them (Teacher.fc)",
    ),
    "loses_bits": (
        {
            "measured_error_ratio": 0.12,
            "last_step_saved_raw_bytes": 130 * MIB,
            "plane_bytes": MIB,
            "last_step_live_bytes": 140 * MIB,
            "last_step_saved_bytes": 100 * MIB,
        },
        FEW_BITS,
        {},
        "The budget forces 1 bit in 23 layers, gradient error 12%; 178 MiB",
    ),
    "temporaries_are_large": (
        {"last_step_live_bytes": 140 * MIB, "last_step_saved_bytes": 10 * MIB, "last_step_saved_raw_bytes": 10 * MIB},
        [],
        {},
        "79% of the step's peak",
    ),
    "is_stopped": ({"is_paused": 1}, [], {}, "stopped by command"),
    "memory_is_in_pieces": ({"fragmentation_ratio": 0.8, "cached_bytes": 70 * MIB}, [], {}, "70.0 MiB are free"),
    "steps_are_uneven": ({}, [], {"step_seconds": [1.0, 1.0, 1.0, 1.0, 5.0] * 8}, "Slow steps take 5 s"),
    "fits_exactly": ({}, [], {}, "Fits exactly: 55.0 MiB of 150 MiB; the batch could be 3.7 times as large."),
    "compresses_well": (
        {"expected_error_ratio": 0.004, "last_step_saved_raw_bytes": 300 * MIB},
        FEW_BITS,
        {},
        "10.0 times less than plain at a gradient error of 0.4%",
    ),
}  # fmt: skip


def run(name: str) -> Evidence:
    values, slots, history, _text = CASES[name]
    return Evidence({**HEALTHY, **values}, slots, history)


def test_there_is_a_case_for_every_rule() -> None:
    assert set(CASES) == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_speaks_of_its_own_trouble_with_its_evidence(name: str) -> None:
    found = {verdict.rule: verdict for verdict in judge(run(name))}
    assert CASES[name][3] in found[name].text
    assert found[name].evidence
    assert set(found) <= {name, "fits_exactly"}, "and of no other"


def test_a_healthy_run_only_fits() -> None:
    flat = {**STEPS, "last_step_live_bytes": [55.0 * MIB] * 40, "step_seconds": [1.0, 1.1] * 20}
    assert [verdict.rule for verdict in judge(Evidence(HEALTHY, [], flat))] == ["fits_exactly"]


@pytest.mark.parametrize("values", [{}, {"budget_bytes": MIB}, {**HEALTHY, "steps_total": 1}])
def test_without_data_there_is_no_verdict(values: dict[str, float]) -> None:
    assert judge(Evidence(values)) == []


def test_memory_that_wavers_does_not_grow() -> None:
    wavering = [(50 + i % 5) * float(MIB) for i in range(40)]
    rules = [verdict.rule for verdict in judge(Evidence(HEALTHY, [], {**STEPS, "last_step_live_bytes": wavering}))]
    assert rules == ["fits_exactly"]


def test_the_gravest_comes_first_and_says_what_a_button_may_do() -> None:
    both = Evidence({**HEALTHY, "oom_total": 1, "is_paused": 1, "peak_held_bytes": 100 * MIB})
    found = judge(both)
    assert [verdict.level for verdict in found] == ["trouble", "note", "good"]
    assert found[0].action == {"budget_bytes": pytest.approx(1.05 * 150 * MIB)}


def test_the_sidecar_answers_with_the_verdict(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.values |= {
        **HEALTHY,
        "measured_error_ratio": 0,
        "expected_error_ratio": 0,
        "evictions_total": 0,
        "plane_bytes": 0,
    }
    answer: dict[str, Any] = running.get("/v1/verdict").json()
    assert [found["rule"] for found in answer["verdicts"]] == ["fits_exactly"]
    assert running.get("/v1/report").json()["verdicts"] == answer["verdicts"]
    assert running.client.post("/v1/verdict", headers=RIGHT).status_code == 405


def test_growth_names_the_list_that_keeps_graphs_alive() -> None:
    containers = [{"name": "losses", "place": "train.py, main", "has_graph": True}]
    notes = {"growth_bytes_per_step": 3.0 * MIB, "steps": 64, "containers": containers}
    (found, *_) = judge(Evidence(HEALTHY, [], {}, notes=notes))
    assert found.text.startswith("Memory grows by 3.00 MiB a step: `losses` (train.py, main) keeps graphs alive.")
    containers[0]["has_graph"] = False
    assert "gains a tensor with every step" in judge(Evidence(HEALTHY, [], {}, notes=notes))[0].text


def test_temporaries_are_traced_to_their_line() -> None:
    values = {**HEALTHY, **CASES["temporaries_are_large"][0]}
    lines = [{"file": "/home/me/train.py", "line": 41, "function": "loss", "bytes": 90 * MIB}]
    assert "train.py:41 held most at the peak" in judge(Evidence(values, lines=lines))[0].text
