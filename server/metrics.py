"""Prometheus metrics: a table of what is exported, and a collector that pulls one snapshot of each process per scrape.

No global registry is touched, and nothing is counted between scrapes: every number is the
page's own. `docs/metrics.md` is printed from the table (`python -m daf.server.metrics`).
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from daf import __version__
from daf.server.exposition import Encode, Row, encoded, end_of
from daf.server.fleet import figures
from daf.server.fleet.hub import Hub
from daf.server.fleet.kinds import kinds
from daf.server.fleet.members import CRASHED, FINISHED, LIVE, UNREADABLE, Fleet, Member, Reading, Selection

Samples = Iterable[tuple[tuple[str, ...], float]]
Kind = Literal["gauge", "counter"]
LABELS = ("run", "job", "host", "rank", "device")
MAX_BITS = 8
MANY = 64  # processes, above which a scrape tells the last samples
STALE_SECONDS = 30.0  # after which the last sample of a living process is told no more
ENDED_SECONDS = 900.0  # how long an ended process is still reported, so that an alert can see it
STATES = (LIVE, FINISHED, CRASHED, UNREADABLE)


@dataclass(frozen=True, slots=True)
class Sample:
    """All that one process gives to one scrape."""

    member: Member
    reading: Reading
    memory: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Export:
    """One metric: `read` returns (extra label values, value) pairs of one process; none where it does not apply."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Sample], Samples]
    labels: tuple[str, ...] = ()
    when_ended: bool = False

    @property
    def unit(self) -> str:
        base = self.name.removesuffix("_total")
        return next((unit for unit in ("bytes", "seconds", "ratio") if base.endswith("_" + unit)), "")

    def family(self, labels: Iterable[str] = LABELS) -> CounterMetricFamily | GaugeMetricFamily:
        names = [*labels, *self.labels]
        if self.kind == "counter":
            return CounterMetricFamily(self.name.removesuffix("_total"), self.help, labels=names, unit=self.unit)
        return GaugeMetricFamily(self.name, self.help, labels=names, unit=self.unit)


def _field(name: str) -> Callable[[Sample], Samples]:
    def read(sample: Sample) -> Samples:
        value = sample.reading.values.get(name)
        return [] if value is None else [((), value)]

    return read


def _derived(name: str) -> Callable[[Sample], Samples]:
    return lambda sample: [((), figures.derived(sample.reading.values)[name])]


def _memory(name: str) -> Callable[[Sample], Samples]:
    return lambda sample: [((), sample.memory[name])] if name in sample.memory else []


def _split(prefix: str, suffix: str) -> Callable[[Sample], Samples]:
    """Read the fields `<prefix><label><suffix>` as one metric with a label."""

    def read(sample: Sample) -> Samples:
        values = sample.reading.values
        for name, label in _matching(prefix, suffix, tuple(values)):
            yield (label,), values[name]

    return read


@functools.lru_cache(maxsize=256)
def _matching(prefix: str, suffix: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the names between which and prefix and suffix something stands, and what. Most runs have equal fields."""
    labels = [(name, name.removeprefix(prefix).removesuffix(suffix)) for name in names]
    return [(name, label) for name, label in labels if label and name == prefix + label + suffix]


def _numbered(prefix: str, suffix: str) -> Callable[[Sample], Samples]:
    """The same for labels that are numbers."""
    read = _split(prefix, suffix)
    return lambda sample: [(labels, value) for labels, value in read(sample) if labels[0].isdigit()]


def _slots_by_bits(sample: Sample) -> Samples:
    found = Counter(min(MAX_BITS, max(0, round(row.bits))) for row in sample.reading.slots)
    return [((str(bits),), float(found.get(bits, 0))) for bits in range(MAX_BITS + 1)]


def _bytes_by_bits(sample: Sample) -> Samples:
    found: Counter[int] = Counter()
    for row in sample.reading.slots:
        found[min(MAX_BITS, max(0, round(row.bits)))] += row.live_bytes
    return [((str(bits),), float(found.get(bits, 0))) for bits in range(MAX_BITS + 1)]


def _states(sample: Sample) -> Samples:
    return [((state,), float(sample.member.state == state)) for state in STATES]


def _kinds(sample: Sample) -> Samples:
    return [((kind,), float(size)) for kind, size in kinds(sample.reading.values).items()]


def _heartbeat(sample: Sample) -> Samples:
    return [((), sample.reading.heartbeat_age_seconds)]


def _lowest_fidelity(sample: Sample) -> Samples:
    known = [row.fidelity for row in sample.reading.slots if row.fidelity > 0]
    return [((), min(known))] if known else []


def _gauge(name: str, text: str, read: Callable[[Sample], Samples], *labels: str) -> Export:
    return Export(name, "gauge", text, read, labels)


def _lasting(name: str, text: str, read: Callable[[Sample], Samples], *labels: str) -> Export:
    return Export(name, "gauge", text, read, labels, when_ended=True)


def _counter(name: str, text: str, read: Callable[[Sample], Samples], *labels: str) -> Export:
    return Export(name, "counter", text, read, labels)


EXPORTS: tuple[Export, ...] = (
    _lasting("daf_process_state", "1 for the state that the process is in, 0 for the others.", _states, "state"),
    _lasting("daf_heartbeat_age_seconds", "Time since the process last showed that it lives.", _heartbeat),
    _gauge("daf_budget_bytes", "Bytes that the arena may keep resident.", _field("budget_bytes")),
    _gauge("daf_resident_bytes", "Bytes that the arena keeps resident.", _field("resident_bytes")),
    _gauge("daf_peak_resident_bytes", "Most bytes that the arena ever kept resident.", _field("peak_resident_bytes")),
    _gauge("daf_held_bytes", "Bytes that no eviction can free now.", _field("held_bytes")),
    _gauge("daf_peak_held_bytes", "The least budget that would have done so far.", _field("peak_held_bytes")),
    _gauge("daf_tensor_bytes", "Bytes of ordinary tensors in the arena.", _field("tensor_bytes")),
    _gauge("daf_plane_bytes", "Bytes of encoded activations in the arena.", _field("plane_bytes")),
    _gauge(
        "daf_plane_position_bytes",
        "Bytes of encoded activations by bit position: 0 is never dropped, 1 the most significant bit.",
        _numbered("plane_", "_bytes"),
        "position",
    ),
    _gauge("daf_kind_bytes", "Resident bytes by what they are for.", _kinds, "kind"),
    _gauge("daf_plain_bytes", "What plain training would need at the peak of a step.", _derived("plain_bytes")),
    _gauge(
        "daf_expected_error_ratio",
        "Relative error of the gradient that the plan expects.",
        _field("expected_error_ratio"),
    ),
    _gauge(
        "daf_measured_error_ratio",
        "Relative error of the gradient when it was last measured; 0 before.",
        _field("measured_error_ratio"),
    ),
    _gauge(
        "daf_overhead_seconds",
        "Time a step that the plan expects to spend on codecs and recomputing.",
        _field("overhead_seconds"),
    ),
    _gauge("daf_cached_bytes", "Resident bytes that are free and kept for reuse.", _field("cached_bytes")),
    _gauge("daf_spilled_bytes", "Bytes moved to slower memory.", _field("spilled_bytes")),
    _gauge("daf_saved_raw_bytes", "Bytes that the held activations would take without DAF.", _field("saved_raw_bytes")),
    _gauge(
        "daf_compression_ratio",
        "The most that saved activations would take without DAF over the most they take, in the last step.",
        _derived("compression_ratio"),
    ),
    _gauge(
        "daf_saved_bytes",
        "The most that saved activations would take without DAF less the most they take, in the last step.",
        _derived("saved_bytes"),
    ),
    _gauge(
        "daf_fragmentation_ratio",
        "Share of free tensor memory outside its largest extent.",
        _field("fragmentation_ratio"),
    ),
    _gauge("daf_stashes", "Encoded activations that are held.", _field("stashes")),
    _gauge("daf_slots", "Slots by their width in bits, rounded.", _slots_by_bits, "bits"),
    _gauge("daf_slot_bytes", "Bytes that slots hold, by their width in bits, rounded.", _bytes_by_bits, "bits"),
    _gauge(
        "daf_fidelity_ratio",
        "Worst cosine, over slots, of an op's gradients from coded and from exact contents; 1 is exact.",
        _lowest_fidelity,
    ),
    _gauge("daf_compression_paused", "1 while compression is paused by command.", _field("is_paused")),
    _counter("daf_evictions_total", "Planes dropped, by what for.", _split("evictions_", "_total"), "reason"),
    _counter("daf_evicted_bytes_total", "Bytes of planes dropped.", _field("evicted_bytes_total")),
    _counter("daf_spills_total", "Stashes moved to slower memory.", _field("spills_total")),
    _counter("daf_restores_total", "Stashes brought back from slower memory.", _field("restores_total")),
    _counter("daf_budget_raises_total", "Times a budget lowered from outside gave way.", _field("budget_raises_total")),
    _counter("daf_oom_total", "Requests that did not fit when everything droppable was gone.", _field("oom_total")),
    _counter("daf_trimmed_bytes_total", "Bytes given back to the system.", _field("trimmed_bytes_total")),
    _counter("daf_steps_total", "Training steps.", _field("steps_total")),
    _gauge("daf_step_seconds", "Length of the last training step.", _field("step_seconds")),
    _counter("daf_training_seconds_total", "Length of all training steps together.", _field("step_seconds_total")),
    _counter("daf_page_faults_total", "Page faults of the process.", _field("faults_total")),
    _gauge("daf_process_resident_bytes", "Resident set size of the process.", _memory("process_resident_bytes")),
    _gauge("daf_process_virtual_bytes", "Virtual size of the process.", _memory("process_virtual_bytes")),
)

# Of the sidecar itself: (name, help, value)
OWN: tuple[tuple[str, str], ...] = (
    ("daf_sidecar_processes", "Training processes that the sidecar knows, by state."),
    ("daf_sidecar_stream_clients", "Clients of the event stream."),
    ("daf_sidecar_resident_bytes", "Resident set size of the sidecar."),
    ("daf_build_info", "The version of the sidecar; always 1."),
)


class FleetCollector(Collector):
    """Pulls one snapshot of every process when Prometheus asks, and keeps nothing in between."""

    def __init__(self, fleet: Fleet, hub: Hub) -> None:
        self._fleet = fleet
        self._hub = hub

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registering reads no page."""
        return []

    def collect(self) -> Iterator[Metric]:
        samples = self._samples()
        for export in EXPORTS:
            family = export.family()
            for sample, extra, value in _values(export, samples):
                family.add_metric([*sample.member.labels, *extra], value)
            yield family
        yield from self._own()

    def text(self, encode: Encode) -> bytes:
        """Return all of that in the encoder's format."""
        samples = self._samples()
        rows = {sample.member.id: Row(LABELS, sample.member.labels) for sample in samples}
        parts = []
        for export in EXPORTS:
            parts.append(encoded(encode, [export.family()]))
            lines = [
                rows[sample.member.id].line(export.name, export.labels, extra, value)
                for sample, extra, value in _values(export, samples)
            ]
            parts.append("".join(lines).encode())
        return b"".join([*parts, encoded(encode, self._own()), end_of(encode)])

    def _samples(self) -> list[Sample]:
        now = self._fleet.clock()
        known = [m for m in self._fleet.select(Selection()) if m.ended_at is None or now - m.ended_at < ENDED_SECONDS]
        shown = _of_distinct_labels(known)
        found = _last_readings(shown, now) if len(shown) > MANY else self._fleet.read(shown)
        return [Sample(member, reading, figures.process_memory(member)) for member, reading in found]

    def _own(self) -> Iterator[Metric]:
        texts = dict(OWN)
        name = "daf_sidecar_processes"
        processes = GaugeMetricFamily(name, texts[name], labels=["state"])
        states = Counter(member.state for member in self._fleet.members.values())
        for state in STATES:
            processes.add_metric([state], states.get(state, 0))
        yield processes
        name = "daf_sidecar_stream_clients"
        yield GaugeMetricFamily(name, texts[name], value=self._hub.num_clients)
        name = "daf_sidecar_resident_bytes"
        yield GaugeMetricFamily(name, texts[name], value=psutil.Process(os.getpid()).memory_info().rss)
        info = GaugeMetricFamily("daf_build_info", texts["daf_build_info"], labels=["version"])
        info.add_metric([__version__], 1)
        yield info


def _values(export: Export, samples: Iterable[Sample]) -> Iterator[tuple[Sample, tuple[str, ...], float]]:
    for sample in samples:
        if sample.member.state == LIVE or export.when_ended:
            for extra, value in export.read(sample):
                yield sample, extra, value


def _last_readings(members: Iterable[Member], now: float) -> list[tuple[Member, Reading]]:
    """Return what the sampler read last: reading a thousand pages anew for each scrape would take too long."""
    found = [(member, member.last) for member in members if member.last is not None]
    return [it for it in found if it[0].state != LIVE or now - it[1].time < STALE_SECONDS]


def _of_distinct_labels(members: Iterable[Member]) -> list[Member]:
    """Return those to show, no two with equal labels: of a rank that was started again the living, or the last."""
    found: dict[tuple[str, ...], Member] = {}
    for member in sorted(members, key=lambda it: (it.state == LIVE, it.page.identity.started_at)):
        found.pop(member.labels, None)
        found[member.labels] = member
    return list(found.values())


def table() -> str:
    """Return `docs/metrics.md`."""
    head = """# Metrics

The sidecar answers `GET /metrics` in Prometheus' text format, or in OpenMetrics where the client asks for it. One
scrape takes one snapshot of every process. `python -m daf.server.metrics` prints this table; a test keeps it true.

Each metric of a process has the labels `run` (its name, else its job), `job` (as its launcher named it; of a process on
its own its id), `host`, `rank` and `device`, and those named below. They stay the same for as long as a process lives.
Scrape with `honor_labels: true`, or Prometheus calls the job `exported_job`.

| metric | type | unit | further labels | meaning |
|---|---|---|---|---|
"""
    rows = [
        f"| `{e.name}` | {e.kind} | {e.unit} | {', '.join(f'`{label}`' for label in e.labels)} | {e.help} |"
        for e in EXPORTS
    ]
    own = [f"| `{name}` | {text} |" for name, text in OWN]
    rest = "\n## Of the sidecar itself\n\n| metric | meaning |\n|---|---|\n"
    return head + "\n".join(rows) + "\n" + rest + "\n".join(own) + "\n"


if __name__ == "__main__":
    print(table(), end="")
