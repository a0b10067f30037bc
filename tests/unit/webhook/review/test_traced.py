"""The trace of a review tells what took time, and nothing of the object or the user."""

import asyncio
import cProfile
import dataclasses
import json
import pstats
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry import traces
from kyverno_mp.telemetry.collector import Collector as CollectorAddress
from kyverno_mp.telemetry.otlp import span_sender
from kyverno_mp.telemetry.trace import External, Trace
from kyverno_mp.telemetry.traces import Tracer
from kyverno_mp.telemetry.tracing import resource_of
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.service import Service as ReviewService
from kyverno_mp.webhook.review.traced import decided, observe
from kyverno_mp.webhook.route import SHARED, route_of
from tests.collector import Collector, attributes_of, collecting
from tests.unit.webhook.cel.test_cel_policies import policy
from tests.unit.webhook.cel.test_cel_worker import Service
from tests.unit.webhook.review.test_service import Bench
from tests.unit.webhook.stub import StubPlan, response, review
from tests.waiting import HANG_S, real_ns, wait_on_loop

SAMPLES = Path(__file__).parents[4] / "config/samples"
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRETS = ("geheim", "alice", "dev-team", "web-0", "team-namespace")
SLOW_CHECK = {
    "expression": "has(object.metadata.labels)",
    "messageExpression": "'no labels: ' + object.data",
}
NEEDS_LABEL = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "needs-label"},
    "spec": {
        "validationFailureAction": "Enforce",
        "rules": [
            {
                "name": "label",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {
                    "message": "{{ request.object.data }}",
                    "deny": {
                        "conditions": {
                            "all": [
                                {
                                    "key": "{{ request.object.data }}",
                                    "operator": "Equals",
                                    "value": "geheim",
                                }
                            ]
                        }
                    },
                },
            }
        ],
    },
}
OFF_CALLS = 316
"""Calls of a review without traces, two of them those of this test."""
SECRET_REVIEW = {
    "name": "web-0",
    "namespace": "team-namespace",
    "userInfo": {"username": "alice", "groups": ["dev-team"]},
    "object": {
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "team-namespace"},
        "data": "geheim",
    },
}


def _keep(tracer: Tracer, ended: list[Trace]) -> None:
    """Keep finished traces in a list instead of sending them."""
    vars(tracer)["ended"] = ended.append


class Traced:
    """A worker that traces to a collector."""

    def __init__(self, folder: Path, collector: Collector) -> None:
        self.service = Service(folder)
        self.collector = collector

    def start(self, *policies: dict[str, Any], **changes: Any) -> None:
        self.service.put(*policies)
        self.service.given = dataclasses.replace(
            self.service.given,
            traces=True,
            traces_host="127.0.0.1",
            traces_port=self.collector.port,
            otlp_protocol="http",
            **{"traces_sampled": 1.0, "traces_slow_policy_ms": 0.0, **changes},
        )
        self.service.start()

    def ask(
        self, path: str, body: bytes, parent: bytes = b"", *, is_proved: bool = True
    ) -> bytes:
        assert self.service.served is not None
        route = route_of(path.encode())
        assert route is not None
        answer = self.service.served.connections.service.answer(
            route, b"", body, is_proved=is_proved, traceparent=parent
        )
        if isinstance(answer, bytes):
            return answer
        waited = asyncio.wait_for(answer, HANG_S)
        return self.service.loop.run_until_complete(waited)

    def close(self) -> None:
        traces.finish(HANG_S)
        self.service.close()
        traces.install(None)

    def spans(self) -> list[Any]:
        """End the tracer, and return what has arrived."""
        traces.finish(HANG_S)
        return list(self.collector.spans)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    with collecting("http") as collector:
        running = Traced(tmp_path, collector)
        yield running
        running.close()


def of_name(spans: list[Any], name: str) -> list[dict[str, Any]]:
    return [attributes_of(span) for span in spans if span.name == name]


def test_denied_review_names_steps_policies_and_rules(traced: Traced) -> None:
    traced.start(NEEDS_LABEL, policy("team"))
    answer = json.loads(traced.ask("/validate/fail", review(**SECRET_REVIEW), PARENT))
    assert answer["response"]["allowed"] is False
    spans = traced.spans()
    assert [span.name for span in spans] == [
        *("review", "decode", "plan", "evaluate"),
        "policy",
    ]
    assert {span.trace_id.hex() for span in spans} == {PARENT[3:35].decode()}
    assert spans[0].parent_span_id.hex() == PARENT[36:52].decode()
    assert of_name(spans, "review") == [
        {
            "kyverno.webhook": "validate",
            "kyverno.kind": "Pod",
            "kyverno.operation": "CREATE",
            "kyverno.uid": "u-1",
            "kyverno.allowed": False,
            "kyverno.failed": ("needs-label/label",),
        }
    ]
    assert of_name(spans, "policy") == [
        {
            "kyverno.policy": "needs-label",
            "kyverno.policy.kind": "ClusterPolicy",
            "kyverno.rules": ("label",),
            "kyverno.result": "fail",
        }
    ]
    begins = [span.start_time_unix_nano for span in spans]
    assert begins[0] <= begins[1] <= begins[2] <= begins[3]


def test_policies_in_cel_are_steps_too(traced: Traced) -> None:
    traced.start(policy("team"), policy("labels", SLOW_CHECK))
    traced.ask("/vpol/team/labels", review(**SECRET_REVIEW))
    spans = traced.spans()
    found = {one["kyverno.policy"]: one for one in of_name(spans, "policy")}
    assert sorted(found) == ["labels", "team"]
    assert found["labels"]["kyverno.policy.kind"] == "ValidatingPolicy"
    assert found["labels"]["kyverno.result"] == "fail"


def test_calls_in_a_lane_are_steps() -> None:
    """They run in another thread, within the evaluation."""
    ended: list[Trace] = []
    tracer = Tracer(lambda _traces: True, sampled=1.0, slow_ns=0)
    _keep(tracer, ended)

    def call(_deadline_ns: int) -> None:
        with External("service", "GET"):
            pass

    async def run() -> None:
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 1, 5, real_ns)
        plan = StubPlan(needs_io=True, work=call)
        bench = Bench(plan, slow_lane=lane, tracer=tracer)
        bench.now_ns = real_ns()
        answer = bench.service.answer(SHARED[b"/validate/fail"], b"", review())
        assert not isinstance(answer, bytes)
        await answer
        lane.stop()

    asyncio.run(run())
    (trace,) = ended
    assert [span.name for span in trace.spans] == [
        *("decode", "plan", "service GET", "evaluate")
    ]
    *_, step, evaluate = trace.spans
    assert evaluate.began_ns <= step.began_ns <= step.ended_ns <= evaluate.ended_ns


def test_audit_is_a_trace_that_names_its_review_and_its_calls() -> None:
    ended: list[Trace] = []
    tracer = Tracer(lambda _traces: True, sampled=1.0, slow_ns=0)
    _keep(tracer, ended)

    class Auditing(StubPlan):
        def audit(
            self, deadline_ns: int, pace: Pace | None = None
        ) -> list[PolicyResponse]:
            with External("service", "GET"):
                return super().audit(deadline_ns, pace)

    bench = Bench(Auditing(audit=[response(action="Audit")]), tracer=tracer)
    bench.ask()
    assert [uid for uid, _, _ in bench.audited()] == ["u-1"]
    told, audit = ended
    assert (told.name, audit.name) == ("review", "audit")
    assert audit.link == (told.trace_id, told.span_id)
    assert audit.trace_id != told.trace_id
    assert [span.name for span in audit.spans] == ["service GET"]


def test_review_past_its_deadline_ends_its_trace_once() -> None:
    """The late thread goes on, and adds nothing."""
    ended: list[Trace] = []
    tracer = Tracer(lambda _traces: True, sampled=1.0, slow_ns=0)
    _keep(tracer, ended)
    release = threading.Event()

    def late(_deadline_ns: int) -> None:
        with External("service", "GET"):
            assert release.wait(HANG_S)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 1, 5, real_ns)
        bench = Bench(StubPlan(needs_io=True, work=late), slow_lane=lane, tracer=tracer)
        bench.now_ns = real_ns()
        route = SHARED[b"/validate/fail"]
        answer = bench.service.answer(route, b"timeout=50ms", review())
        assert not isinstance(answer, bytes)
        await answer
        release.set()
        await wait_on_loop(lambda: not lane.running)
        lane.stop()

    asyncio.run(run())
    (trace,) = ended
    assert trace.error == "webhook.deadline"
    assert trace.attributes["kyverno.allowed"] is False
    assert [span.name for span in trace.spans] == ["decode", "plan"]


def test_no_value_of_an_object_or_a_user_is_sent(traced: Traced) -> None:
    traced.start(NEEDS_LABEL, policy("team"), policy("labels", SLOW_CHECK))
    for path in ("/validate/fail", "/mutate/fail", "/vpol/team/labels"):
        for operation in ("CREATE", "UPDATE", "DELETE"):
            old = {"oldObject": SECRET_REVIEW["object"]}
            body = review(**SECRET_REVIEW, **old, operation=operation)
            traced.ask(path, body)
    with pytest.raises(HttpError):
        traced.ask("/validate/fail", b'{"request": "geheim"}')
    spans = traced.spans()
    assert len(of_name(spans, "review")) == 10
    text = "\n".join(map(str, spans)) + str(traced.collector.resources)
    assert [secret for secret in SECRETS if secret in text] == []


def test_undecodable_review_is_an_error(traced: Traced) -> None:
    traced.start(NEEDS_LABEL)
    with pytest.raises(HttpError):
        traced.ask("/validate/fail", b"{", PARENT)
    (span,) = traced.spans()
    assert span.status.code == 2
    assert attributes_of(span)["error.type"].startswith("admission.")


def test_only_sampled_reviews_of_the_api_server_are_traced(traced: Traced) -> None:
    traced.start(NEEDS_LABEL, traces_sampled=0.0)
    body = review(**SECRET_REVIEW)
    traced.ask("/validate/fail", body)
    traced.ask("/validate/fail", body, PARENT[:-2] + b"00")
    traced.ask("/validate/fail", body, PARENT, is_proved=False)
    traced.ask("/validate/fail", body, PARENT)
    assert len(of_name(traced.spans(), "review")) == 1


def test_fast_policies_are_no_steps(traced: Traced) -> None:
    traced.start(NEEDS_LABEL, traces_slow_policy_ms=60_000.0)
    traced.ask("/validate/fail", review(**SECRET_REVIEW))
    assert of_name(traced.spans(), "policy") == []


@pytest.mark.parametrize("sampled", [-1.0, 0.01])
def test_calls_of_a_traced_review(
    traced: Traced, sampled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without traces none is added; a sampling of 1 % adds less than 3 %.

    -1: traces are off; 0.01 is counted as one sampled review and 99 others.
    """
    samples = [
        document
        for path in sorted((SAMPLES / "policies").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    raw = json.loads((SAMPLES / "reviews/pod-denied.json").read_text())

    def body(number: int) -> bytes:
        name = f"n{number}"
        raw["request"]["uid"] = raw["request"]["name"] = name
        raw["request"]["object"]["metadata"]["name"] = name
        return json.dumps(raw).encode()

    bodies = [body(number) for number in range(700)]

    def calls(parents: list[bytes], bodies: list[bytes]) -> float:
        profile = cProfile.Profile()
        with profile:
            for parent, text in zip(parents, bodies, strict=True):
                traced.ask("/validate", text, parent)
        # Stats has it, and its type has not.
        return float(pstats.Stats(profile).total_calls) / len(bodies)  # type: ignore[attr-defined]

    if sampled < 0:
        traced.service.put(*samples)
        traced.service.start()
    else:
        traced.start(*samples, traces_sampled=0.0, traces_slow_policy_ms=1.0)
    assert traced.service.served is not None
    service = traced.service.served.connections.service
    assert isinstance(service, ReviewService)
    dependencies = service._dependencies
    assert (dependencies.tracer is None) is (sampled < 0)
    none = [b""] * 100
    for text in bodies[:200]:
        traced.ask("/validate", text)
    untraced = calls(none, bodies[200:300])
    print("calls of an unsampled review", untraced)
    if sampled < 0:
        assert untraced < OFF_CALLS
        return
    with_parent = calls([PARENT] * 100, bodies[300:400])
    print("calls of a sampled review", with_parent)
    sent = calls_of_sending(traced.collector.port)
    print("calls to send its trace", sent)
    mean = 0.99 * untraced + 0.01 * (with_parent + sent)
    print("calls at 1 %", mean)
    assert mean < OFF_CALLS * 1.03


def calls_of_sending(port: int) -> float:
    """Count the calls of the thread that sends, with 50 traces in a batch."""
    send = span_sender(
        CollectorAddress(f"http://127.0.0.1:{port}", "http"),
        resource_of(Settings(), "webhook"),
    )
    ended: list[Trace] = []
    tracer = Tracer(send, sampled=1.0, slow_ns=0)
    _keep(tracer, ended)
    for _ in range(51):
        request = Request(operation="CREATE", kind="Pod", uid="u")
        trace = observe(tracer, b"", request, "validate", (1, 1))
        assert trace is not None
        trace.step("plan")
        trace.step("evaluate")
        failed = response()
        decided(trace, [failed] * 5, "", allowed=False)
    assert send(ended[:1])
    profile = cProfile.Profile()
    with profile:
        assert send(ended[1:])
    return float(pstats.Stats(profile).total_calls) / 50  # type: ignore[attr-defined]
