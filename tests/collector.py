"""An OTLP collector for tests, on OpenTelemetry's own messages and gRPC service.

Takes: exports over HTTP or gRPC. Gives: the spans and metrics that arrived. Next: tests
of traces and of pushed metrics. May touch: a port of this machine.
"""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2,
    trace_service_pb2_grpc,
)

from tests.waiting import wait_for

HTTP: Final = "http"
GRPC: Final = "grpc"
PROTOCOLS: Final = (HTTP, GRPC)


class Collector:
    """What has arrived, in the order of arrival."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Any] = []
        self.resources: list[Mapping[str, Any]] = []
        self.metrics: list[Any] = []
        self.exports = 0
        self.paths: list[str] = []
        self.is_answering = threading.Event()
        """Cleared: requests are accepted and never answered."""
        self.is_answering.set()

    def take_traces(self, request: Any) -> None:
        self.exports += 1
        self.is_answering.wait()
        for resource in request.resource_spans:
            self.resources.append(attributes_of(resource.resource))
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def take_metrics(self, request: Any) -> None:
        self.exports += 1
        self.is_answering.wait()
        for resource in request.resource_metrics:
            self.resources.append(attributes_of(resource.resource))
            for scope in resource.scope_metrics:
                self.metrics += scope.metrics

    def named(self, name: str) -> list[Any]:
        """Return the spans of a name."""
        return [span for span in list(self.spans) if span.name == name]

    def wait_for(self, name: str, count: int = 1) -> list[Any]:
        """Wait for the spans of a name."""
        return wait_for(
            lambda: found if len(found := self.named(name)) >= count else None
        )


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(value_of(item) for item in value.array_value.values)
    return getattr(value, kind)


def attributes_of(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span, a point or a resource."""
    return {item.key: value_of(item.value) for item in holder.attributes}


@contextmanager
def collecting(
    protocol: str, certificate: tuple[bytes, bytes] | None = None
) -> Iterator[Collector]:
    """Run a collector; ``certificate``: key and chain for gRPC over TLS."""
    collector = Collector()
    serve = _serve_http if protocol == HTTP else _serve_grpc
    stop = serve(collector, certificate)
    try:
        yield collector
    finally:
        collector.is_answering.set()
        stop()


def _serve_http(collector: Collector, certificate: Any) -> Any:
    assert certificate is None

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.append(self.path)
            if self.path == "/v1/traces":
                traces = trace_service_pb2.ExportTraceServiceRequest()
                traces.ParseFromString(body)
                collector.take_traces(traces)
            else:
                metrics = metrics_service_pb2.ExportMetricsServiceRequest()
                metrics.ParseFromString(body)
                collector.take_metrics(metrics)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


def _serve_grpc(collector: Collector, certificate: Any) -> Any:
    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802 - the RPC
            collector.take_traces(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802 - the RPC
            collector.take_metrics(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    # Generated code has no types.
    traces: Any = trace_service_pb2_grpc
    metrics: Any = metrics_service_pb2_grpc
    traces.add_TraceServiceServicer_to_server(Traces(), server)
    metrics.add_MetricsServiceServicer_to_server(Metrics(), server)
    if certificate is None:
        collector.port = server.add_insecure_port("127.0.0.1:0")
    else:
        credentials = grpc.ssl_server_credentials([certificate])
        collector.port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return lambda: server.stop(None).wait()
