"""A denial stands once it is reached, even if other policies fail or hang."""

import asyncio
import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.limits import REVIEW_MESSAGES_CHARACTERS_MAX
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ApiRequest, ClusterData
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.plans import SnapshotEvaluate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import HANG_S, HandTimers, TicksNs, still_ns

_BURN = "request.object.xs[].join('', [@, @, @, @])"
_XS = ["a"] * 20_000


def policy(
    name: str,
    *rules: str,
    namespace: str = "",
    action: str = "Enforce",
    failure_policy: str = "Ignore",
) -> str:
    """Return a policy whose rules deny if their expression is 'x'."""
    return json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "Policy" if namespace else "ClusterPolicy",
            "metadata": {"name": name, "namespace": namespace or None},
            "spec": {
                "failurePolicy": failure_policy,
                "background": False,
                "rules": [
                    {
                        "name": f"r{number}",
                        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                        "context": [{"name": "api", "apiCall": {"urlPath": "/version"}}]
                        if "api" in expression
                        else [],
                        "validate": {
                            "failureAction": action,
                            "message": f"{name} says no",
                            "deny": {
                                "conditions": {
                                    "all": [
                                        {
                                            "key": "{{ " + expression + " }}",
                                            "operator": "Equals",
                                            "value": "x",
                                        }
                                    ]
                                }
                            },
                        },
                    }
                    for number, expression in enumerate(rules)
                ],
            },
        }
    )


DENIES = policy("admin", "request.operation == 'CREATE' && 'x'")
BURNS = policy("burns", *[_BURN] * 50, namespace="default")


class Server:
    """An API server that never answers: each call takes the time that it may take."""

    def __init__(self) -> None:
        self.now_ns = still_ns()

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        self.now_ns = max(self.now_ns, deadline_ns)
        raise DeadlinePassed("kube.deadline", f"no answer to {request}")

    def monotonic_ns(self) -> int:
        return self.now_ns


def service(*policies: str, **parts: Any) -> Service:
    server = parts.pop("server", Server())
    monotonic_ns = parts.pop("monotonic_ns", server.monotonic_ns)
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=monotonic_ns)
    engine = Engine(ClusterData(api_calls=server), clock)
    segment = segment_of("\n---\n".join(policies))
    planner = ValidationPlanner(engine, SegmentSource(segment, link_rule))
    return Service(
        Dependencies(
            records=StubRecords(),
            monotonic_ns=monotonic_ns,
            **parts,
        ),
        handlers_of(SnapshotEvaluate(lambda: planner)),
    )


def body() -> bytes:
    return review(
        object={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default"},
            "xs": _XS,
        }
    )


def ask(made: Service, query: bytes = b"timeout=2s") -> Any:
    answer = made.answer(SHARED[b"/validate/ignore"], query, body())
    assert isinstance(answer, bytes)
    return json.loads(answer)["response"]


@pytest.mark.parametrize("policies", [(DENIES, BURNS), (BURNS, DENIES)])
def test_tenant_that_exhausts_its_budget_cancels_no_denial(
    policies: tuple[str, ...],
) -> None:
    answer = ask(service(*policies))
    assert not answer["allowed"]
    assert "admin says no" in answer["status"]["message"]


def test_exhausted_budget_alone_is_reported() -> None:
    answer = ask(service(BURNS))
    assert answer["allowed"]
    assert any("budget" in text for text in answer["warnings"])


def test_waiting_tenant_takes_no_time_from_cluster_policies() -> None:
    """Both call the API server; the tenant's call never ends."""
    waits = policy("waits", "api", namespace="default")

    class Partly(Server):
        def call(self, request: ApiRequest, deadline_ns: int) -> Json:
            left_s = (deadline_ns - self.now_ns) / 1e9
            return "x" if left_s > 1.0 else super().call(request, deadline_ns)

    answer = ask(service(waits, policy("admin", "api"), server=Partly()))
    assert not answer["allowed"]
    assert "admin says no" in answer["status"]["message"]


@pytest.mark.parametrize("threads", [1, 0])
def test_late_thread_keeps_its_verdicts(threads: int) -> None:
    """The verdict is used; without a free thread the event loop evaluates instead."""
    let_go = threading.Event()

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        timers = HandTimers(loop)
        lane = Lane(loop, 1, -1 + threads, still_ns)
        hangs = policy("hangs", "api", namespace="default")

        class Deaf(Server):
            def call(self, request: ApiRequest, deadline_ns: int) -> Json:
                del request, deadline_ns
                timers.ring()
                return let_go.wait(HANG_S)

        made = service(hangs, DENIES, server=Deaf(), slow_lane=lane)
        answer = made.answer(SHARED[b"/validate/ignore"], b"timeout=500ms", body())
        assert isinstance(answer, asyncio.Future)
        # The thread waits until after the answer.
        told = json.loads(await answer)["response"]
        let_go.set()
        lane.stop()
        return told

    answer = asyncio.run(run())
    assert not answer["allowed"]
    assert "admin says no" in answer["status"]["message"]
    assert "hangs" in answer["status"]["message"], "what was not evaluated is named"


def test_long_work_leaves_the_event_loop() -> None:
    ticks = TicksNs(100_000)

    async def run() -> tuple[Any, float]:
        loop = asyncio.get_running_loop()
        _never = HandTimers(loop)
        lanes = [Lane(loop, 1, 5, still_ns) for _ in range(2)]
        made = service(
            BURNS,
            DENIES,
            slow_lane=lanes[0],
            long_lane=lanes[1],
            monotonic_ns=ticks,
        )
        started_ns = ticks.now_ns
        answer = made.answer(SHARED[b"/validate/ignore"], b"timeout=30s", body())
        held_s = (ticks.now_ns - started_ns) / 1e9
        assert isinstance(answer, asyncio.Future)
        told = json.loads(await answer)["response"]
        for lane in lanes:
            lane.stop()
        return told, held_s

    answer, held_s = asyncio.run(run())
    assert not answer["allowed"]
    assert "admin says no" in answer["status"]["message"]
    assert held_s < 1


def test_defect_of_one_policy_cancels_no_denial_of_another() -> None:
    class Broken(Server):
        def call(self, request: ApiRequest, deadline_ns: int) -> Json:
            del request, deadline_ns
            raise ZeroDivisionError

    made = service(policy("broken", "api"), DENIES, server=Broken())
    answer = ask(made)
    assert not answer["allowed"]
    message = answer["status"]["message"]
    assert "admin says no" in message
    assert "webhook.defect" in message


def test_answer_size_is_bounded_with_any_messages() -> None:
    text = "{{ request.object.long }}"
    rules = [
        {
            "name": f"r{number}",
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "validate": {"failureAction": "Enforce", "message": text, "deny": {}},
        }
        for number in range(400)
    ]
    long = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "long"},
        "spec": {"background": False, "rules": rules},
    }
    made = service(json.dumps(long))
    pod = {"kind": "Pod", "metadata": {"name": "web"}, "long": "geheim " * 1300}
    answer = made.answer(SHARED[b"/validate/fail"], b"", review(object=pod))
    assert isinstance(answer, bytes)
    told = json.loads(answer)["response"]
    assert not told["allowed"]
    message = told["status"]["message"]
    assert message.count("r399") == 1, "each rule is named"
    assert "(shortened)" in message
    assert REVIEW_MESSAGES_CHARACTERS_MAX < len(message) < 1.2e6
