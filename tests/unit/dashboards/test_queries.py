"""Grafana and Prometheus ask only for what the sidecar exports, and what is committed is what the generator makes."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess

import pytest

from daf import dashboards
from daf.dashboards import boards
from daf.server import metrics
from tests.tools import require_tool

FOLDER = pathlib.Path(dashboards.__file__).parent
RULES = FOLDER / "prometheus" / "daf.rules.yml"
NOT_OURS = {"up"}  # Prometheus makes it itself


def exported() -> set[str]:
    return {export.name for export in metrics.EXPORTS} | {name for name, *_ in metrics.OWN}


def recorded() -> set[str]:
    return set(re.findall(r"- record: (\S+)", RULES.read_text()))


def metrics_in(expression: str) -> set[str]:
    """Return the names that look like metrics: not functions, not labels, not keywords."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|ignoring|on|without) \([^)]*\)", "", expression)
    names = set(re.findall(r"[a-zA-Z_][\w:]*(?!\w*\s*\()", bare))
    return {name for name in names if name.startswith("daf_") or ":" in name or name in NOT_OURS}


def queries_of(board: boards.Board) -> list[str]:
    return [expression for _, panels in board.rows for panel in panels for expression, _ in panel.queries]


def test_metrics_are_told_from_functions_and_labels() -> None:
    expression = 'sum by (daf_label) (rate(daf_a_total{daf_b="1"}[5m])) and ignoring (state) rank:daf_c:ratio > 1'
    assert metrics_in(expression) == {"daf_a_total", "rank:daf_c:ratio"}


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_every_metric_of_a_dashboard_is_exported(board: boards.Board) -> None:
    for query in queries_of(board):
        assert metrics_in(query), query
        assert metrics_in(query) <= exported() | recorded(), query


def test_rates_follow_the_scrape_interval_and_marks_ask_for_what_there_is() -> None:
    for board in boards.BOARDS:
        assert not [query for query in queries_of(board) if re.search(r"\b(rate|irate)\([^)]*\[\d+\w\]", query)]
        marks = json.loads(boards.render(board))["annotations"]["list"]
        assert [mark["name"] for mark in marks] == [name for name, *_ in boards.MARKS]
        for mark in marks:
            assert metrics_in(mark["expr"]) <= exported(), mark


def test_every_alert_says_what_to_do() -> None:
    text = RULES.read_text()
    assert text.count("- alert: ") == text.count("          remedy: ")


def test_every_metric_of_the_rules_is_exported() -> None:
    for expression in re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE):
        assert metrics_in(expression), expression
        assert metrics_in(expression) <= exported() | recorded() | NOT_OURS, expression


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_the_committed_dashboard_is_what_the_generator_makes(board: boards.Board) -> None:
    assert (boards.GRAFANA_DIR / f"{board.uid}.json").read_text() == boards.render(board)


@pytest.mark.parametrize("path", sorted(boards.GRAFANA_DIR.glob("*.json")), ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported_anywhere(path: pathlib.Path) -> None:
    board = json.loads(path.read_text())
    charts = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert board["uid"] == path.stem
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {panel["datasource"]["uid"] for panel in charts} == {"${source}"}
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in charts)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


def test_the_rules_hold_and_each_alert_is_tested_both_ways() -> None:
    promtool = require_tool("promtool")
    tests = RULES.with_name("daf.rules.test.yml")
    for command in (
        ["check", "rules", RULES],
        ["test", "rules", tests],
        ["check", "config", RULES.with_name("prometheus.yml")],
    ):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False, cwd=RULES.parent)
        assert done.returncode == 0, done.stdout + done.stderr
    for alert in re.findall(r"- alert: (\S+)", RULES.read_text()):
        assert re.search(rf"alertname: {alert}, exp_alerts: \[\]", tests.read_text()), alert
        assert re.search(rf"alertname: {alert}\n +exp_alerts:\n", tests.read_text()), alert
