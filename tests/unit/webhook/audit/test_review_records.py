"""From the bytes of a review to the records of its events, on a real engine.

A failure means: the fast program and its shared answers omit data that an event needs.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.controllers.admission_events import event_infos_of
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.queues.journal import Journal, JournalReader
from kyverno_mp.queues.records import decode_record
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.audit.sink import EventOptions, JournalSink
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import still_ns

POLICIES = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: three}
spec:
  background: false
  rules:
  - name: fails
    match: &pods {any: [{resources: {kinds: [Pod]}}]}
    validate:
      failureAction: ACTION
      message: team is needed
      pattern: {metadata: {labels: {team: "?*"}}}
  - name: passes
    match: *pods
    validate:
      failureAction: ACTION
      message: a name is needed
      pattern: {metadata: {name: "?*"}}
  - name: skipped
    match: *pods
    preconditions:
      all: [{key: "{{ request.operation }}", operator: Equals, value: DELETE}]
    validate:
      failureAction: ACTION
      message: never
      deny: {}
  - name: elsewhere
    match: {any: [{resources: {kinds: [Secret]}}]}
    validate:
      failureAction: ACTION
      message: "has {{ request.object.data }}"
      deny: {}
"""
MUTATE = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: add}
spec:
  rules:
  - name: label
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {seen: "yes"}}}}
"""


class Bench:
    """A worker's service without its transport, and the leader's messages."""

    def __init__(self, folder: Path, policies: str, *, passes: bool = False) -> None:
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
        engine = Engine(ClusterData(), clock)
        segment = segment_of(policies)
        planner = ValidationPlanner(engine, SegmentSource(segment, link_rule))
        mutations = MutationPlanner(engine, SegmentSource(segment, link_mutation))
        self.journal = Journal.claim(folder, 100)
        self.reader = JournalReader(folder)
        self.loop = asyncio.new_event_loop()
        self.audit_queue = AuditQueue(
            9, on_drop=lambda: None, on_error=lambda error: pytest.fail(repr(error))
        )
        options = EventOptions(records_successes=lambda: passes, now_ns=still_ns)
        records = StubRecords()
        self.service = Service(
            Dependencies(
                records=records,
                monotonic_ns=still_ns,
                audit_queue=self.audit_queue,
                sink=JournalSink(self.journal, records, self.loop, options),
            ),
            handlers_of(
                SnapshotEvaluate(lambda: planner), SnapshotMutate(lambda: mutations)
            ),
        )

    def ask(self, path: bytes = b"/validate", **changes: Any) -> Any:
        answer = self.service.answer(SHARED[path], b"", review(**changes))
        assert isinstance(answer, bytes)
        return json.loads(answer)["response"]

    def notes(self) -> list[str]:
        self.audit_queue.start()
        assert self.audit_queue.stop(5)
        found = []
        for record in self.reader.records():
            found += [one.note for one in event_infos_of(decode_record(record.content))]
            record.done()
        return found

    def close(self) -> None:
        self.reader.close()
        self.journal.close()
        self.loop.close()


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Any]:
    made: list[Bench] = []

    def make(policies: str, **options: Any) -> Bench:
        made.append(Bench(tmp_path, policies, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "a", "labels": {"x": "y"}},
}
FAILURE = (
    "validation error: team is needed. rule fails failed at path /metadata/labels/team/"
)


def test_every_rule_has_a_message_beside_an_audited_failure(benches: Any) -> None:
    bench = benches(POLICIES.replace("ACTION", "Audit"))
    assert bench.ask(object=POD)["allowed"]
    assert bench.notes() == [
        f"Pod a/web: [fails] fail; {FAILURE}",
        f"policy three/fails fail: {FAILURE}",
        "policy three/passes pass: validation rule 'passes' passed.",
        "policy three/skipped skip: preconditions not met",
    ]


def test_denial_names_the_failed_rules(benches: Any) -> None:
    bench = benches(POLICIES.replace("ACTION", "Enforce"))
    assert not bench.ask(object=POD)["allowed"]
    assert bench.notes() == [f"Pod a/web: [fails] fail (blocked); {FAILURE}"]


def test_event_for_a_denied_secret_is_redacted(benches: Any) -> None:
    bench = benches(POLICIES.replace("ACTION", "Enforce"))
    kind = {"group": "", "version": "v1", "kind": "Secret"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    answer = bench.ask(kind=kind, object={**secret, "data": {"a": "geheim"}})
    assert "geheim" in answer["status"]["message"]
    assert bench.notes() == ["Secret s: [elsewhere] fail (blocked)"]


@pytest.mark.parametrize("passes", [False, True])
def test_mutation_creates_an_event_if_successes_do(
    benches: Any,
    passes: bool,  # noqa: FBT001 - a table
) -> None:
    bench = benches(MUTATE, passes=passes)
    assert "patch" in bench.ask(b"/mutate", object=POD)
    assert bench.ask(b"/mutate", object=POD, dryRun=True)["allowed"]
    expected = ["Pod a/web is successfully mutated"] if passes else []
    assert bench.notes() == expected
