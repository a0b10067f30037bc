"""A mutating policy with failurePolicy Ignore does not undo other mutations."""

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.ports import ApiRequest, ClusterData
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.plans import SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubEvaluate, StubRecords, review
from tests.waiting import HANG_S, HandTimers, still_ns

LABEL = """\
  - name: NAME
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {NAME: "1"}}}}
"""
ASKS = """\
  - name: asks
    match: {any: [{resources: {kinds: [Pod]}}]}
    context: [{name: x, apiCall: {urlPath: /NAME}}]
    mutate: {patchStrategicMerge: {metadata: {labels: {asked-NAME: "{{ x }}"}}}}
"""
Call = Callable[[str, int], Json]


def policy(name: str, *, asks: bool = False, failure_policy: str = "Ignore") -> str:
    """Return a policy that sets the label ``name`` and then calls the API server."""
    return (
        "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\n"
        f"metadata: {{name: {name}}}\n"
        f"spec:\n  failurePolicy: {failure_policy}\n  rules:\n"
        + (LABEL + (ASKS if asks else "")).replace("NAME", name)
        + "---\n"
    )


class _Server:
    def __init__(self, call: Call) -> None:
        self._call = call

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        return self._call(request.path, deadline_ns)


class Bench:
    def __init__(self, policies: str, call: Call, **parts: Any) -> None:
        self.late_ns = 0
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=self.now_ns)
        engine = Engine(ClusterData(api_calls=_Server(call)), clock)
        source = SegmentSource(segment_of(policies), link_mutation)
        planner = MutationPlanner(engine, source)
        self.records = StubRecords()
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=self.now_ns,
                **parts,
            ),
            handlers_of(StubEvaluate(), SnapshotMutate(lambda: planner)),
        )

    def now_ns(self) -> int:
        return still_ns() + self.late_ns

    def ask(self, path: bytes = b"/mutate/ignore") -> Any:
        answer = self.service.answer(SHARED[path], b"", review())
        assert isinstance(answer, bytes)
        return json.loads(answer)["response"]


def labels(answer: Any) -> set[str]:
    found: set[str] = set()
    for operation in json.loads(base64.b64decode(answer.get("patch", "W10="))):
        found |= set(operation["value"])
    return found


def unexpected_error(_target: str, _deadline_ns: int) -> Json:
    raise ValueError


def test_defect_drops_the_whole_policy() -> None:
    three = policy("first") + policy("bad", asks=True) + policy("last")
    bench = Bench(three, unexpected_error)
    answer = bench.ask()
    assert answer["allowed"]
    assert labels(answer) == {"first", "last"}
    (warning,) = answer["warnings"]
    assert warning.startswith("kyverno skipped the changes of policy bad (webhook.def")
    assert bench.records.errors == ["webhook.defect"]


def test_later_policies_can_make_calls_while_time_remains() -> None:
    def call(target: str, _deadline_ns: int) -> Json:
        if target == "/bad":
            raise ValueError
        return "1"

    bench = Bench(policy("bad", asks=True) + policy("good", asks=True), call)
    assert labels(bench.ask()) == {"good", "asked-good"}


@pytest.mark.parametrize("path", [b"/mutate/fail", b"/mutate"])
def test_defect_denies_with_failure_policy_fail(path: bytes) -> None:
    failing = policy("must", asks=True, failure_policy="Fail")
    bench = Bench(failing + policy("first"), unexpected_error)
    answer = bench.ask(path)
    assert not answer["allowed"]
    assert "webhook.defect" in answer["status"]["message"]


def test_policies_without_calls_are_applied_when_time_is_up() -> None:
    asked: list[str] = []

    def call(target: str, _deadline_ns: int) -> Json:
        asked.append(target)
        bench.late_ns = 3_600_000_000_000
        raise DeadlinePassed("kube.deadline", "no answer in time")

    bench = Bench(
        policy("first")
        + policy("slow", asks=True)
        + policy("next", asks=True)
        + policy("last"),
        call,
    )
    answer = bench.ask()
    assert labels(answer) == {"first", "last"}
    assert "kube.deadline" in answer["warnings"][0]
    assert asked == ["/slow"]


def test_hanging_policy_does_not_affect_the_others() -> None:
    """The review is answered by its deadline while the thread is still waiting."""
    let_go = threading.Event()
    answered: list[tuple[str, bool]] = []
    rings: list[Callable[[], None]] = []

    def call(target: str, _deadline_ns: int) -> Json:
        rings[0]()
        answered.append((target, let_go.wait(HANG_S)))
        return "1"

    async def ask() -> Any:
        loop = asyncio.get_running_loop()
        timers = HandTimers(loop)
        rings.append(timers.ring)
        lane = Lane(loop, 1, 1, still_ns)
        three = policy("first") + policy("slow", asks=True) + policy("last")
        bench = Bench(three, call, slow_lane=lane)
        path = SHARED[b"/mutate/ignore"]
        answer = bench.service.answer(path, b"timeout=300ms", review())
        assert isinstance(answer, asyncio.Future)
        told = json.loads(await answer)["response"]
        assert not answered, "the thread waits still"
        let_go.set()
        lane.stop()
        return told

    answer = asyncio.run(ask())
    assert labels(answer) == {"first", "last"}
    assert "webhook.deadline" in answer["warnings"][0]


def test_review_without_a_free_thread_applies_policies_without_calls() -> None:
    async def ask() -> Any:
        lane = Lane(asyncio.get_running_loop(), 1, -1, still_ns)
        two = policy("slow", asks=True) + policy("last")
        bench = Bench(two, unexpected_error, slow_lane=lane)
        answer = bench.service.answer(SHARED[b"/mutate/ignore"], b"", review())
        assert isinstance(answer, asyncio.Future)
        return json.loads(await answer)["response"]

    answer = asyncio.run(ask())
    assert labels(answer) == {"last"}
    assert "webhook.slow_lane_full" in answer["warnings"][0]


def test_unchanged_object_is_counted_as_allowed() -> None:
    """A failure means: the API server uses the answer for another review."""
    as_it_is = policy("a").replace('labels: {a: "1"}', "name: web")
    assert "name: web" in as_it_is
    bench = Bench(as_it_is, lambda _path, _deadline_ns: None)
    assert bench.ask() == {"uid": "u-1", "allowed": True}
    assert [allowed for _, _, allowed in bench.records.reviews] == [True]


def test_changed_object_is_counted_as_allowed() -> None:
    bench = Bench(policy("a"), lambda _path, _deadline_ns: None)
    answer = bench.ask()
    assert (answer["uid"], answer["allowed"]) == ("u-1", True)
    assert [allowed for _, _, allowed in bench.records.reviews] == [True]
