"""Send traces to a collector by OTLP, with OpenTelemetry's SDK.

Room: telemetry. Takes: Traces. Gives: a function that sends them; what push.py needs to
send metrics. Next: the collector that the operator names.
May touch: the network, through the exporters of the SDK; they read OpenTelemetry's own
variables, such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_RESOURCE_ATTRIBUTES.
Source: OpenTelemetry protocol 1.x; docs/behaviour/controllers 9.2, 9.3.

Imported only if the operator turns it on: it takes half a second and 20 to 40 MiB, and
the packages are those of the extra ``otel``.
"""

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

from kyverno_mp import __version__
from kyverno_mp.limits import OTLP_DEADLINE_S
from kyverno_mp.telemetry.collector import GRPC, Collector
from kyverno_mp.telemetry.trace import ERROR_CODE, POLICY, Span, Trace, cut, new_id

SCOPE: Final = InstrumentationScope("kyverno-mp", __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def quiet() -> None:
    """Keep the SDK's own lines about each failed attempt out of the log.

    They repeat what a metric counts, and name the collector's answer.
    """
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


class _Process(Resource):
    """The one resource of a process; PERF: the SDK's hash encodes it for each span."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def resource_of(service: str, pod: str, namespace: str, role: str) -> Resource:
    """Return the description of this process."""
    known = Resource.create(
        {
            "service.name": service,
            "service.version": __version__,
            "service.instance.id": f"{pod}/{role}",
            "k8s.pod.name": pod,
            "k8s.namespace.name": namespace,
            "kyverno_mp.role": role,
        }
    )
    return _Process(known.attributes, known.schema_url)


def span_sender(
    collector: Collector, resource: Resource
) -> Callable[[Sequence[Trace]], bool]:
    """Return a function that sends traces; call it in one thread, after the fork."""
    exporter: SpanExporter | None = None
    offset_ns = time.time_ns() - time.monotonic_ns()

    def send(traces: Sequence[Trace]) -> bool:
        nonlocal exporter
        exporter = exporter or _span_exporter(collector)
        spans = [span for one in traces for span in spans_of(one, resource, offset_ns)]
        return exporter.export(spans) is SpanExportResult.SUCCESS

    quiet()
    return send


def _span_exporter(collector: Collector) -> SpanExporter:
    if collector.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        return grpc.OTLPSpanExporter(**grpc_options(collector))
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

    return http.OTLPSpanExporter(**http_options(collector, "v1/traces"))


def grpc_options(collector: Collector) -> dict[str, Any]:
    """Return the arguments of an exporter by gRPC."""
    options = {"endpoint": collector.url, "timeout": OTLP_DEADLINE_S}
    if not collector.is_tls:
        return {**options, "insecure": True}
    import grpc

    credentials = grpc.ssl_channel_credentials(collector.authorities())
    return {**options, "insecure": False, "credentials": credentials}


def http_options(collector: Collector, path: str) -> dict[str, Any]:
    """Return the arguments of an exporter by HTTP."""
    return {
        "endpoint": f"{collector.url}/{path}",
        "timeout": OTLP_DEADLINE_S,
        "certificate_file": collector.ca_file or None,
    }


def load(collector: Collector) -> None:
    """Import what sending needs, before the fork, so that processes share it."""
    for signal in ("trace", "metric"):
        package = f"opentelemetry.exporter.otlp.proto.{collector.protocol}"
        importlib.import_module(f"{package}.{signal}_exporter")


def spans_of(
    trace: Trace, resource: Resource, offset_ns: int
) -> Iterator[ReadableSpan]:
    """Yield a trace's spans; ``offset_ns``: from the monotonic clock to Unix time."""
    context = _context(trace.trace_id, trace.span_id)
    is_remote = bool(trace.parent_id)
    facts = dict(trace.attributes)
    if trace.left_out:
        facts["kyverno.steps_left_out"] = trace.left_out

    def span(
        found: Span, ids: SpanContext, parent: SpanContext | None, kind: SpanKind
    ) -> ReadableSpan:
        attributes = dict(found.attributes)
        if found.error:
            attributes[ERROR_CODE] = cut(found.error)
        return ReadableSpan(
            found.name,
            context=ids,
            parent=parent,
            resource=resource,
            attributes=attributes,
            links=_links(trace) if ids is context else (),
            kind=kind,
            status=Status(StatusCode.ERROR if found.error else StatusCode.UNSET),
            start_time=found.began_ns + offset_ns,
            end_time=found.ended_ns + offset_ns,
            instrumentation_scope=SCOPE,
        )

    yield span(
        Span(trace.name, trace.began_ns, trace.ended_ns, facts, trace.error),
        context,
        _context(trace.trace_id, trace.parent_id, is_remote=True)
        if is_remote
        else None,
        SpanKind.SERVER if trace.is_server else SpanKind.INTERNAL,
    )
    for step in (*trace.spans, *_policies(trace)):
        kind = SpanKind.CLIENT if step.is_call else SpanKind.INTERNAL
        yield span(step, _context(trace.trace_id, new_id(8)), context, kind)


def _policies(trace: Trace) -> Iterator[Span]:
    """Yield the steps of slow policies, with what they decided."""
    for policy, began_ns, ended_ns in list(trace.policies):
        found = getattr(policy, "ir", policy)
        found = getattr(found, "policy", found)
        key = cut(found.key)
        facts: dict[str, Any] = {POLICY: key, "kyverno.policy.kind": cut(found.kind)}
        facts.update(trace.results.get(found.key, {}))
        yield Span("policy", began_ns, ended_ns, facts)


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, _SAMPLED)


def _links(trace: Trace) -> Sequence[Link]:
    return () if trace.link is None else (Link(_context(*trace.link)),)
