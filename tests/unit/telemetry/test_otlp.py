"""Spans and metrics arrive at a collector, by both protocols."""

from collections import Counter
from pathlib import Path

import pytest
from cryptography import x509

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.policy.metrics_configuration import Exposure, MetricsConfiguration
from kyverno_mp.process.metrics_push import Measured, Pusher
from kyverno_mp.process.startup.certificate import make
from kyverno_mp.settings.read import read
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.collector import of_metrics, of_traces
from kyverno_mp.telemetry.families import GENERATION
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.push import metric_sender
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tracing import resource_of, start_tracing
from tests.collector import PROTOCOLS, attributes_of, collecting
from tests.waiting import HANG_S, wait_for

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def settings_of(port: int, protocol: str, **more: str) -> Settings:
    variables = {
        "TRACES": "true",
        "TRACES_HOST": "127.0.0.1",
        "TRACES_PORT": str(port),
        "METRICS_PUSH": "true",
        "METRICS_PUSH_HOST": "127.0.0.1",
        "METRICS_PUSH_PORT": str(port),
        "OTLP_PROTOCOL": protocol,
        "POD_NAME": "pod-1",
        **more,
    }
    return read({f"KYVERNO_MP_{name}": value for name, value in variables.items()})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_arrive_with_their_parents(protocol: str) -> None:
    with collecting(protocol) as collector:
        tracer = start_tracing(settings_of(collector.port, protocol), "webhook")
        assert tracer is not None
        trace = tracer.begin("review", PARENT)
        assert trace is not None
        trace.is_server = True
        trace.add("decode", trace.began_ns)
        trace.policies.append(
            (PolicyIR(kind="Policy", name="p", namespace="n"), 10, 20)
        )
        trace.results["n/p"] = {"kyverno.rules": ("r",), "kyverno.result": "fail"}
        trace.end({"kyverno.allowed": False}, "kube.server")
        tracer.begin("audit", b"")  # not ended, so not sent
        assert tracer.stop(HANG_S)
        root, decode, policy = collector.spans
    assert root.trace_id.hex() == PARENT[3:35].decode()
    assert root.parent_span_id.hex() == PARENT[36:52].decode()
    assert (root.name, root.kind, root.status.code) == ("review", 2, 2)
    assert attributes_of(root) == {
        "kyverno.allowed": False,
        "error.type": "kube.server",
    }
    # Unix time, in any year after 2001.
    assert 10**18 < root.start_time_unix_nano <= root.end_time_unix_nano
    assert decode.parent_span_id == policy.parent_span_id == root.span_id
    assert decode.trace_id == root.trace_id
    assert len({root.span_id, decode.span_id, policy.span_id}) == 3
    assert policy.end_time_unix_nano - policy.start_time_unix_nano == 10
    assert attributes_of(policy) == {
        "kyverno.policy": "n/p",
        "kyverno.policy.kind": "Policy",
        "kyverno.rules": ("r",),
        "kyverno.result": "fail",
    }
    (resource,) = collector.resources
    assert resource["service.name"] == "kyverno-admission-controller"
    assert resource["service.instance.id"] == "pod-1/webhook"
    assert resource["k8s.namespace.name"] == "kyverno"


@pytest.mark.parametrize(
    ("role", "service"),
    [
        ("background", "kyverno-background-controller"),
        ("cleanup", "kyverno-cleanup-controller"),
        ("reports", "kyverno-reports-controller"),
        ("leader", "kyverno-admission-controller"),
        ("kyverno-mp", "kyverno-mp"),
    ],
)
def test_services_have_the_names_of_kyverno(role: str, service: str) -> None:
    assert resource_of(Settings(), role).attributes["service.name"] == service


def test_work_after_an_answer_is_a_linked_trace() -> None:
    with collecting("http") as collector:
        tracer = start_tracing(
            settings_of(collector.port, "http", TRACES_SAMPLED="1"), "webhook"
        )
        assert tracer is not None
        review = tracer.begin("review")
        assert review is not None
        audit = review.follow("audit")
        review.end()
        audit.end()
        assert tracer.stop(HANG_S)
        first, second = collector.spans
    assert second.trace_id != first.trace_id
    assert not second.parent_span_id
    assert [(link.trace_id, link.span_id) for link in second.links] == [
        (first.trace_id, first.span_id)
    ]


def measured(folder: Path) -> Measured:
    recorder = Recorder(Page.claim(folder, "webhook"), 100)
    for namespace in ("a", "hidden"):
        labels = ("Pod", namespace, "create", "true", "Validating")
        recorder.admission.observe(labels, 0.3)
        recorder.admission.observe(labels, 0.003)
    recorder.errors.count(("kube.server",), 2.0)
    shown = MetricsConfiguration(
        exclude_namespaces=("hidden",),
        exposure={
            "kyverno_mp_errors": Exposure(enabled=False),
            "kyverno_admission_review_duration_seconds": Exposure(
                disabled_labels=("resource_namespace",), bucket_boundaries=(0.1, 1.0)
            ),
        },
    )
    return merge(views(folder), shown), {GENERATION: {(): 7.0}}, shown


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_metrics_are_pushed_as_they_are_exposed(tmp_path: Path, protocol: str) -> None:
    with collecting(protocol) as collector:
        settings = settings_of(collector.port, protocol)
        found = of_metrics(settings)
        assert found is not None
        send = metric_sender(found, resource_of(settings, "health"))
        assert send(*measured(tmp_path))
        metrics = {metric.name: metric for metric in collector.metrics}
    timing = metrics["kyverno_admission_review_duration_seconds"].histogram
    (point,) = timing.data_points
    assert timing.aggregation_temporality == 2
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert list(point.bucket_counts) == [1, 1, 0]
    assert (point.count, round(point.sum, 6)) == (2, 0.303)
    assert "resource_namespace" not in attributes_of(point)
    assert attributes_of(point)["request_allowed"] == "true"
    total = metrics["kyverno_admission_requests"].sum
    assert total.is_monotonic
    (counted,) = total.data_points
    assert counted.as_double == 2
    assert attributes_of(counted)["resource_namespace"] == "a"
    assert 0 < counted.start_time_unix_nano <= counted.time_unix_nano
    (gauge,) = metrics["kyverno_mp_snapshot_generation"].gauge.data_points
    assert gauge.as_double == 7
    assert not [name for name in metrics if "errors" in name]


def test_pushes_are_counted_and_the_last_one_is_made_at_the_end(tmp_path: Path) -> None:
    counts: Counter[tuple[str, ...]] = Counter()
    answers = iter((True, False, True))
    values = measured(tmp_path)
    pusher = Pusher(lambda: values, lambda *_values: next(answers), counts, HANG_S)
    assert pusher.stop(HANG_S)
    assert counts == {("exported",): 1}


def test_a_push_that_fails_ends_no_thread(tmp_path: Path) -> None:
    counts: Counter[tuple[str, ...]] = Counter()
    values = measured(tmp_path)

    def send(*_values: object) -> bool:
        raise OSError("secret")

    pusher = Pusher(lambda: values, send, counts, 0.001)
    wait_for(lambda: counts["failed",] >= 3)
    assert pusher.stop(HANG_S)


def test_tls_accepts_the_named_authority_only(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir(mode=0o700)
    files = make(folder, "kyverno")
    chain = files.cert.read_bytes()
    names = x509.load_pem_x509_certificate(chain).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert "localhost" in names.value.get_values_for_type(x509.DNSName)
    pair = files.key.read_bytes(), chain
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    with collecting("grpc", pair) as collector:
        for authority, is_sent in ((files.cert, True), (make(other, "k").cert, False)):
            settings = settings_of(
                collector.port,
                "grpc",
                METRICS_PUSH_HOST="localhost",
                OTLP_TLS="true",
                OTLP_CA_FILE=str(authority),
            )
            found = of_metrics(settings)
            assert found is not None
            assert found.is_tls
            send = metric_sender(found, resource_of(settings, "health"))
            assert send({}, {GENERATION: {(): 7.0}}, MetricsConfiguration()) is is_sent
    assert len(collector.metrics) == 1


def test_addresses() -> None:
    traced = of_traces(settings_of(4317, "grpc", TRACES_HOST="[::1]"))
    assert traced is not None
    assert traced.url == "http://[::1]:4317"
    assert of_traces(Settings()) is None
    assert of_metrics(Settings()) is None
