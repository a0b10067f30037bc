"""A query that depends on the request does not wait in the event loop."""

import asyncio
import json
import threading
from datetime import UTC, datetime

from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.plans import SnapshotEvaluate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import still_ns

POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  background: false
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    context:
    - name: asked
      variable: {jmesPath: "{{ request.object.query }}"}
    validate:
      failureAction: Enforce
      message: is external
      deny:
        conditions: {all: [{key: "{{ asked }}", operator: Equals, value: true}]}
"""


def test_names_are_resolved_in_a_thread() -> None:
    """A failure means: a slow DNS server blocks every review of the worker."""
    threads: list[threading.Thread] = []

    def resolve(_host: str) -> list[str]:
        threads.append(threading.current_thread())
        return ["8.8.8.8"]

    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    engine = Engine(ClusterData(resolve_host=resolve), clock)
    planner = ValidationPlanner(engine, SegmentSource(segment_of(POLICY), link_rule))

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        lanes = [Lane(loop, 1, 1, still_ns) for _ in range(2)]
        service = Service(
            Dependencies(
                records=StubRecords(),
                monotonic_ns=still_ns,
                slow_lane=lanes[0],
                long_lane=lanes[1],
            ),
            handlers_of(SnapshotEvaluate(lambda: planner)),
        )
        pod = {"kind": "Pod", "query": "is_external_url('http://example.com')"}
        answer = service.answer(SHARED[b"/validate/fail"], b"", review(object=pod))
        assert isinstance(answer, asyncio.Future)
        found = await answer
        for lane in lanes:
            lane.stop()
        return found

    response = json.loads(asyncio.run(run()))["response"]
    assert not response["allowed"]
    assert threads != []
    assert threading.main_thread() not in threads
