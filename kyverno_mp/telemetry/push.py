"""Send all metrics to a collector by OTLP, with OpenTelemetry's SDK.

Room: telemetry. Takes: merged series, gauges, the operator's metric options. Gives: a
function that sends them; the health process calls it. Next: the operator's collector.
May touch: the network, through the exporters of the SDK.
Source: OpenTelemetry protocol 1.x; docs/behaviour/controllers 9.2: names are those of
/metrics, those of counters without ``_total``.

Imported only if the operator turns it on, as telemetry/otlp.py.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource

from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.collect import Cells, Merged
from kyverno_mp.telemetry.collector import GRPC, Collector
from kyverno_mp.telemetry.expose import rows_of
from kyverno_mp.telemetry.families import Family
from kyverno_mp.telemetry.otlp import SCOPE, grpc_options, http_options, quiet

_CUMULATIVE: Final = otel.AggregationTemporality.CUMULATIVE
Gauges = Mapping[Family, Mapping[tuple[str, ...], float]]
Send = Callable[[Merged, Gauges, MetricsConfiguration], bool]
_Series = Mapping[tuple[str, ...], Cells]
_Times = tuple[int, int]
"""Unix times in nanoseconds: of the first value and of this one."""


def metric_sender(collector: Collector, resource: Resource) -> Send:
    """Return a function that sends all metrics; call it in one thread."""
    exporter: otel.MetricExporter | None = None
    began_ns = time.time_ns()
    quiet()

    def send(
        recorded: Merged, gauges: Gauges, configuration: MetricsConfiguration
    ) -> bool:
        nonlocal exporter
        exporter = exporter or _exporter(collector)
        times = began_ns, time.time_ns()
        found = list(_metrics(recorded, gauges, configuration, times))
        scope = otel.ScopeMetrics(SCOPE, found, "")
        data = otel.MetricsData([otel.ResourceMetrics(resource, [scope], "")])
        return exporter.export(data) is otel.MetricExportResult.SUCCESS

    return send


def _exporter(collector: Collector) -> otel.MetricExporter:
    if collector.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc

        return grpc.OTLPMetricExporter(**grpc_options(collector))
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as http

    return http.OTLPMetricExporter(**http_options(collector, "v1/metrics"))


def _metrics(
    recorded: Merged, gauges: Gauges, configuration: MetricsConfiguration, times: _Times
) -> Iterator[otel.Metric]:
    for family, series in recorded.items():
        if family.kind == "histogram":
            yield from _histogram(family, series, configuration, times)
        else:
            yield from _numbers(family, series, configuration, times)
    for family, values in gauges.items():
        cells = {labels: [value] for labels, value in values.items()}
        yield from _numbers(family, cells, configuration, times)


def _numbers(
    family: Family, series: _Series, configuration: MetricsConfiguration, times: _Times
) -> Iterator[otel.Metric]:
    rows = rows_of(family, family.name, series, configuration)
    points = [
        otel.NumberDataPoint(labels, *times, value=cells[0]) for labels, cells in rows
    ]
    if points:
        is_counter = family.kind == "counter"
        yield _metric(family.name, family.text, points, is_counter=is_counter)


def _histogram(
    family: Family, series: _Series, configuration: MetricsConfiguration, times: _Times
) -> Iterator[otel.Metric]:
    counter = family.counted_as
    if counter:
        rows = rows_of(family, counter, series, configuration)
        points = [
            otel.NumberDataPoint(labels, *times, value=sum(cells[:-1]))
            for labels, cells in rows
        ]
        if points:
            yield _metric(counter, family.counted_text, points, is_counter=True)
    bounds = configuration.buckets_of(family.name, family.buckets)
    timings = [
        otel.HistogramDataPoint(
            labels,
            *times,
            count=int(sum(cells[:-1])),
            sum=cells[-1],
            bucket_counts=[int(count) for count in cells[:-1]],
            explicit_bounds=bounds,
            min=0.0,
            max=0.0,
        )
        for labels, cells in rows_of(family, family.name, series, configuration)
    ]
    if timings:
        data = otel.Histogram(timings, _CUMULATIVE)
        yield otel.Metric(family.name, family.text, "s", data)


def _metric(
    name: str, text: str, points: list[otel.NumberDataPoint], *, is_counter: bool
) -> otel.Metric:
    if not is_counter:
        return otel.Metric(name, text, "", otel.Gauge(points))
    data = otel.Sum(points, _CUMULATIVE, is_monotonic=True)
    return otel.Metric(name.removesuffix("_total"), text, "", data)
