"""The Grafana dashboards as code: `python -m daf.dashboards.boards` writes `grafana/*.json` from here.

Each panel is one line: what it is called, its unit, and queries with the legend of each. The metrics are the sidecar's
(docs/metrics.md) and the recorded ones of prometheus/daf.rules.yml; a test keeps the three together.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

GRAFANA_DIR = pathlib.Path(__file__).parent / "grafana"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${source}")
ONE_RUN = 'run=~"$run", rank=~"$rank"'


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time, or a single number where `is_stat`. Widths are in Grafana's 24 columns."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]  # (expression, legend)
    help: str = ""
    span: int = 12
    is_stat: bool = False
    is_stacked: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def _one(title: str, unit: str, expression: str, help_text: str, span: int = 4) -> Panel:
    return Panel(title, unit, ((expression, ""),), help_text, span, is_stat=True)


def _ranks(metric: str) -> tuple[tuple[str, str], ...]:
    return ((f"{metric}{{{ONE_RUN}}}", "{{run}} rank {{rank}}"),)


OVERVIEW = Board(
    "daf-overview",
    "DAF: overview",
    "Which runs there are, how full their budgets are, what DAF saves them.",
    (
        (
            "Now",
            (
                _one("Live processes", "none", 'sum(daf_process_state{state="live"})', "Training processes that live."),
                _one("Budgets", "bytes", "sum(daf_budget_bytes)", "All budgets together."),
                _one("Resident", "bytes", "sum(daf_resident_bytes)", "What all arenas keep resident."),
                _one("Saved", "bytes", "sum(run:daf_saved_bytes:sum)", "What activations would take more without DAF."),
                _one("Crashed", "none", 'sum(daf_process_state{state="crashed"})', "Died without ending their run."),
                _one("Out of memory, 1 h", "none", "sum(increase(daf_oom_total[1h]))", "Requests that did not fit."),
            ),
        ),
        (
            "Memory",
            (
                Panel(
                    "Resident and budget",
                    "bytes",
                    (
                        (f"daf_resident_bytes{{{ONE_RUN}}}", "{{run}} rank {{rank}}"),
                        (f"daf_budget_bytes{{{ONE_RUN}}}", "budget of {{run}} rank {{rank}}"),
                    ),
                ),
                Panel(
                    "Where it goes",
                    "bytes",
                    (
                        (f"sum(daf_tensor_bytes{{{ONE_RUN}}})", "tensors"),
                        (f"sum by (position) (daf_plane_position_bytes{{{ONE_RUN}}})", "bit {{position}}"),
                        (f"sum(daf_cached_bytes{{{ONE_RUN}}})", "cached"),
                        (f"sum(daf_spilled_bytes{{{ONE_RUN}}})", "spilled"),
                    ),
                    "Bit 0 is what is never dropped, bit 1 the most significant bit.",
                    is_stacked=True,
                ),
                Panel(
                    "Memory by kind",
                    "bytes",
                    (
                        (f"sum by (kind) (daf_kind_bytes{{{ONE_RUN}}})", "{{kind}}"),
                        (f"sum(daf_plain_bytes{{{ONE_RUN}}})", "plain would need"),
                    ),
                    "Parameters, gradients, optimizer state, activations, temporaries and cached add up to resident.",
                ),
                Panel("Budget in use", "percentunit", _ranks("rank:daf_budget_used:ratio"), most=1),
                Panel("Times less than plain", "none", _ranks("daf_compression_ratio"), "Of saved activations."),
            ),
        ),
        (
            "Speed",
            (
                Panel("Step", "s", _ranks("rank:daf_step_seconds:mean5m"), "Mean over five minutes."),
                Panel(
                    "Steps",
                    "ops",
                    ((f"rate(daf_steps_total{{{ONE_RUN}}}[$__rate_interval])", "{{run}} rank {{rank}}"),),
                ),
            ),
        ),
    ),
)

RANKS = Board(
    "daf-ranks",
    "DAF: jobs and ranks",
    "The ranks of a job side by side: a rank that differs from its siblings stands out.",
    (
        (
            "Memory by rank",
            (
                Panel("Resident", "bytes", _ranks("daf_resident_bytes")),
                Panel("Budget", "bytes", _ranks("daf_budget_bytes")),
                Panel("Tensors", "bytes", _ranks("daf_tensor_bytes")),
                Panel("Planes", "bytes", _ranks("daf_plane_bytes")),
                Panel("Peak resident", "bytes", _ranks("daf_peak_resident_bytes")),
                Panel("Process", "bytes", _ranks("daf_process_resident_bytes"), "Resident set size of the process."),
            ),
        ),
        (
            "Health by rank",
            (
                Panel("Step", "s", _ranks("daf_step_seconds"), "Length of the last step."),
                Panel("Heartbeat age", "s", _ranks("daf_heartbeat_age_seconds")),
                Panel(
                    "Page faults",
                    "ops",
                    ((f"rate(daf_page_faults_total{{{ONE_RUN}}}[$__rate_interval])", "{{run}} rank {{rank}}"),),
                ),
                Panel("Compression paused", "bool", _ranks("daf_compression_paused")),
            ),
        ),
    ),
)

EVICTION = Board(
    "daf-eviction",
    "DAF: eviction and fidelity",
    "What the budget costs: which bits go, why, and what that does to the gradient.",
    (
        (
            "Eviction",
            (
                Panel(
                    "Planes dropped, by what for",
                    "ops",
                    ((f"sum by (reason) (rate(daf_evictions_total{{{ONE_RUN}}}[$__rate_interval]))", "{{reason}}"),),
                    is_stacked=True,
                ),
                Panel("Bytes dropped", "Bps", _ranks("rank:daf_evicted_bytes:rate5m")),
                Panel(
                    "Part of the budget that cannot be evicted",
                    "percentunit",
                    _ranks("rank:daf_floor:ratio"),
                    "At 100% there are no bits left to give.",
                    most=1,
                ),
                Panel("Spilled", "bytes", _ranks("daf_spilled_bytes")),
                Panel(
                    "Spills and returns",
                    "ops",
                    (
                        (f"sum(rate(daf_spills_total{{{ONE_RUN}}}[$__rate_interval]))", "spilled"),
                        (f"sum(rate(daf_restores_total{{{ONE_RUN}}}[$__rate_interval]))", "brought back"),
                    ),
                ),
                Panel(
                    "Out of memory",
                    "none",
                    ((f"increase(daf_oom_total{{{ONE_RUN}}}[$__rate_interval])", "{{run}} rank {{rank}}"),),
                ),
            ),
        ),
        (
            "Precision",
            (
                Panel(
                    "Layers by width",
                    "none",
                    ((f"sum by (bits) (daf_slots{{{ONE_RUN}}})", "{{bits}} bits"),),
                    is_stacked=True,
                ),
                Panel(
                    "Bytes by width",
                    "bytes",
                    ((f"sum by (bits) (daf_slot_bytes{{{ONE_RUN}}})", "{{bits}} bits"),),
                    is_stacked=True,
                ),
                Panel(
                    "Gradient error",
                    "percentunit",
                    (
                        (f"daf_measured_error_ratio{{{ONE_RUN}}}", "measured, {{run}} rank {{rank}}"),
                        (f"daf_expected_error_ratio{{{ONE_RUN}}}", "expected, {{run}} rank {{rank}}"),
                    ),
                    "Norm of the difference that compression makes to the gradient, over its norm.",
                ),
                Panel("Lowest fidelity", "percentunit", _ranks("daf_fidelity_ratio"), "100% is exact.", most=1),
                Panel("Fragmentation", "percentunit", _ranks("daf_fragmentation_ratio"), most=1),
            ),
        ),
    ),
)

BOARDS = (OVERVIEW, RANKS, EVICTION)


def render(board: Board) -> str:
    """Return the JSON that Grafana imports."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["daf"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_siblings())
    )
    for annotation in _annotations():
        built = built.annotation(annotation)
    for variable in _variables():
        built = built.with_variable(variable)
    ids = itertools.count(1)
    for title, panels in board.rows:
        built = built.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            built = built.with_panel((_stat(panel) if panel.is_stat else _chart(panel)).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


# Marks on every chart: what happened, the expression that is above 0 when it does, and its colour.
MARKS = (
    ("Budget changed", f"changes(daf_budget_bytes{{{ONE_RUN}}}[$__rate_interval]) > 0", "blue"),
    ("Out of memory", f"increase(daf_oom_total{{{ONE_RUN}}}[$__rate_interval]) > 0", "red"),
    ("Crashed", f'daf_process_state{{{ONE_RUN}, state="crashed"}} == 1', "dark-red"),
)


def _annotations() -> Iterable[dashboard.AnnotationQuery]:
    for name, expression, color in MARKS:
        mark = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color)
        yield mark.expr(expression)


def _siblings() -> dashboard.DashboardLink:
    """The menu of all dashboards of ours, whose time range goes along."""
    kind = models.DashboardLinkType.DASHBOARDS
    return dashboard.DashboardLink("DAF").type(kind).tags(["daf"]).as_dropdown(True).keep_time(True).include_vars(True)


def _variables() -> Iterable[dashboard.DatasourceVariable | dashboard.QueryVariable]:
    yield dashboard.DatasourceVariable("source").label("Data source").type("prometheus")
    yield _label_variable("run", "Run", "label_values(daf_budget_bytes, run)")
    yield _label_variable("rank", "Rank", 'label_values(daf_budget_bytes{run=~"$run"}, rank)')


def _label_variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    everything = models.VariableOption(text=["All"], value=["$__all"], selected=True)
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NUMERICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(everything)
    )


def _queries(panel: Panel) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expression).legend_format(legend or "__auto").ref_id(chr(ord("A") + i))
        for i, (expression, legend) in enumerate(panel.queries)
    ]


def _stat(panel: Panel) -> stat.Panel:
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"])
    built = stat.Panel().title(panel.title).description(panel.help).datasource(SOURCE).unit(panel.unit)
    built = built.height(4).span(panel.span).reduce_options(reduced).graph_mode(common_models.BigValueGraphMode.AREA)
    for query in _queries(panel):
        built = built.with_target(query)
    return built


def _chart(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True).placement(common_models.LegendPlacement.BOTTOM)
    built = timeseries.Panel().title(panel.title).description(panel.help).datasource(SOURCE).unit(panel.unit)
    built = built.height(8).span(panel.span).min(0).legend(legend.display_mode(common_models.LegendDisplayMode.LIST))
    if panel.most is not None:
        built = built.max(panel.most)
    if panel.is_stacked:
        stacking = common.StackingConfig().mode(common_models.StackingMode.NORMAL)
        built = built.stacking(stacking).fill_opacity(40)
    for query in _queries(panel):
        built = built.with_target(query)
    return built


def write(folder: pathlib.Path = GRAFANA_DIR) -> None:
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(render(board))


if __name__ == "__main__":
    write()
