"""A collector of traces and metrics: what arrives, and what its failure changes."""

import contextlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.collector import PROTOCOLS, Collector, attributes_of, collecting
from tests.faults.service import Service, pod, require_label, review_of, write_whole

pytestmark = pytest.mark.slow
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {
    "Content-Type": "application/json",
    "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
}


@contextlib.contextmanager
def serving(folder: Path, port: int, protocol: str) -> Iterator[Service]:
    (folder / "policies").mkdir()
    write_whole(folder / "policies" / "a.yaml", require_label("a", "app"))
    variables = {
        "TRACES": "true",
        "TRACES_HOST": "127.0.0.1",
        "TRACES_PORT": str(port),
        "METRICS_PUSH": "true",
        "METRICS_PUSH_HOST": "127.0.0.1",
        "METRICS_PUSH_PORT": str(port),
        "METRICS_PUSH_INTERVAL_S": "1",
        "OTLP_PROTOCOL": protocol,
    }
    service = Service(
        folder,
        variables={f"KYVERNO_MP_{name}": text for name, text in variables.items()},
    )
    try:
        yield service
    finally:
        service.close()


def ask(service: Service) -> bool:
    with closing(service.connect()) as link:
        link.request("POST", "/validate/fail", json.dumps(review_of(pod())), HEADERS)
        answer: dict[str, Any] = json.loads(link.getresponse().read())
        return bool(answer["response"]["allowed"])


def value(service: Service, sample: str) -> float:
    _, text = service.get("/metrics")
    found = [line for line in text.splitlines() if line.startswith(sample)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_reviews_are_traced_by_the_workers(tmp_path: Path, protocol: str) -> None:
    """The API server's trace goes on in ours, from processes that were forked."""
    with (
        collecting(protocol) as collector,
        serving(tmp_path, collector.port, protocol) as service,
    ):
        assert ask(service) is False
        (span,) = collector.wait_for("review")
        assert span.trace_id.hex() == TRACE
        assert attributes_of(span)["kyverno.failed"] == ("a/label",) or attributes_of(
            span
        )["kyverno.failed"][0].startswith("a/")
        service.wait(lambda: _names(collector) >= {"kyverno_mp_ready", "kyverno_info"})
        exported = 'kyverno_mp_spans_total{outcome="exported"}'
        service.wait(lambda: value(service, exported) >= 3)
        assert service.ready()


def _names(collector: Collector) -> set[str]:
    return {metric.name for metric in list(collector.metrics)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_that_never_answers_changes_nothing(
    tmp_path: Path, protocol: str
) -> None:
    """Reviews are answered, health says nothing, spans are counted, the pod ends."""
    with (
        collecting(protocol) as collector,
        serving(tmp_path, collector.port, protocol) as service,
    ):
        collector.is_answering.clear()
        assert ask(service) is False
        # A worker waits for the collector.
        service.wait(lambda: collector.exports >= 1)
        for _ in range(20):
            assert ask(service) is False
        assert service.get("/healthz")[0] == 200
        assert service.ready()
        failed = 'kyverno_mp_spans_total{outcome="failed"}'
        service.wait(lambda: value(service, failed) >= 1)
        pushes = 'kyverno_mp_metric_pushes_total{outcome="failed"}'
        service.wait(lambda: value(service, pushes) >= 1)
        assert service.get("/healthz")[0] == 200
        assert service.stop() == 0


def test_no_collector_at_all_changes_nothing(tmp_path: Path) -> None:
    with collecting("http") as collector:
        port = collector.port
    with serving(tmp_path, port, "http") as service:
        assert ask(service) is False
        failed = 'kyverno_mp_spans_total{outcome="failed"}'
        service.wait(lambda: value(service, failed) >= 1)
        assert service.get("/healthz")[0] == 200
        assert "Traceback" not in service.errors()
