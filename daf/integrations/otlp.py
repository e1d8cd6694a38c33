"""A session's figures to an OpenTelemetry collector, by the official SDK (extra `otel`).

On by the variables that every OpenTelemetry program reads: OTEL_EXPORTER_OTLP_ENDPOINT names the collector,
OTEL_METRIC_EXPORT_INTERVAL the milliseconds between two exports. A provider of DAF's own: the script's stays untouched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from daf.integrations.figures import FIGURES

_UNITS = {"bytes": "By", "seconds": "s", "total": "1", "ratio": "1"}


def start(session: Any) -> Any:
    """Return a meter provider that exports the figures of `session` until its `shutdown()`; ImportError without SDK."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create({"daf.run": session.config.name or "daf"})
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource, shutdown_on_exit=False)
    meter = provider.get_meter("daf")
    for name in FIGURES:
        unit = _UNITS[name.rsplit("_", 1)[-1]]
        meter.create_observable_gauge(f"daf.{name}", [_observation(session, name)], unit=unit)
    return provider


def _observation(session: Any, name: str) -> Any:
    from opentelemetry.metrics import CallbackOptions, Observation

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(FIGURES[name](session.stats()))]

    return observe
