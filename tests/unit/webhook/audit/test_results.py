"""The results in the journal when a review is answered.

A failure means: a report lacks results that only the review knew, or results that a
scan derives or that are not reported at all pass through the API server.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.limits import RESULT_ROWS_MAX
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.reporting import Reporting
from kyverno_mp.queues.journal import Journal, JournalReader
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.results.records import decode_results
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.audit.sink import LogSink
from kyverno_mp.webhook.results.sink import JOURNAL_FULL, TOO_LARGE, ResultSink
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import still_ns

TYPES = frozenset({"validate", "mutate", "mutateExisting", "generate", "imageVerify"})
WORDS = frozenset({"pass", "fail", "warn", "error", "skip"})
REPORTING = Reporting(TYPES, WORDS)
AT_NS = 1_700_000_000 * 10**9


class Bench:
    """A worker's service without its transport, and the leader's reader."""

    def __init__(
        self,
        folder: Path,
        policies: str,
        reporting: Reporting | None,
        ring_bytes: int = 1 << 20,
    ) -> None:
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
        engine = Engine(ClusterData(), clock)
        segment = segment_of(policies)
        planner = ValidationPlanner(
            engine, SegmentSource(segment, link_rule), None, reporting
        )
        mutations = MutationPlanner(engine, SegmentSource(segment, link_mutation))
        self.journal = Journal.claim(folder, 1000, ring_bytes)
        self.reader = JournalReader(folder)
        self.loop = asyncio.new_event_loop()
        self.audit_queue = AuditQueue(
            9, on_drop=lambda: None, on_error=lambda error: pytest.fail(repr(error))
        )
        self.records = StubRecords()
        results = None
        if reporting is not None:
            results = ResultSink(self.journal, self.records, reporting, lambda: AT_NS)
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=still_ns,
                audit_queue=self.audit_queue,
                sink=LogSink(self.records, self.loop),
                results=results,
            ),
            handlers_of(
                SnapshotEvaluate(lambda: planner), SnapshotMutate(lambda: mutations)
            ),
        )

    def ask(self, path: bytes = b"/validate", **changes: Any) -> Any:
        answer = self.service.answer(SHARED[path], b"", review(**changes))
        assert isinstance(answer, bytes)
        return json.loads(answer)["response"]

    def recorded(self) -> list[tuple[Subject, list[Row]]]:
        """Return and take the journal's current content."""
        found = []
        for record in self.reader.records():
            at_ns, subject, rows = decode_results(record.content)
            assert at_ns == AT_NS
            found.append((subject, rows))
            record.done()
        return found

    def told(self) -> list[tuple[str, str, str, str]]:
        """Return policy, rule, result and message of all rows in the journal."""
        return [
            (row.policy, row.rule, row.result, row.message)
            for _, rows in self.recorded()
            for row in rows
        ]

    def audit(self) -> None:
        self.audit_queue.start()
        assert self.audit_queue.stop(5)

    def close(self) -> None:
        self.reader.close()
        self.journal.close()
        self.loop.close()


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Any]:
    made: list[Bench] = []

    def make(policies: str, reporting: Any = REPORTING, **options: Any) -> Bench:
        made.append(Bench(tmp_path, policies, reporting, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "a", "uid": "u1"},
}
WEB = Subject(api_version="v1", kind="Pod", name="web", namespace="a", uid="u1")
REVIEWED = {"object": POD, "name": "web", "namespace": "a"}


def policy(name: str, rules: str, more: str = "", labels: str = "") -> str:
    """Return a policy; its rules match Pods."""
    return f"""\
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata:
  name: {name}
  labels: {{{labels}}}
  annotations:
    pod-policies.kyverno.io/autogen-controllers: none
    policies.kyverno.io/category: Best Practices
    policies.kyverno.io/severity: high
spec:
  {more or "background: true"}
  rules: [{rules}]
"""


def rule(name: str, body: str, action: str = "Enforce", more: str = "") -> str:
    return f"""{{name: {name}, match: {{any: [{{resources: {{kinds: [Pod]}}}}]}},
      {more} validate: {{failureAction: {action}, message: needed, {body}}}}},"""


NAMED = 'pattern: {metadata: {name: "?*"}}'
TEAM = 'pattern: {metadata: {labels: {team: "?*"}}}'
BY = """deny: {conditions: {any: [
      {key: "{{ request.operation }}", operator: Equals, value: UPDATE}]}}"""
ONCE = "background: false"
FAILURE = "validation error: needed. rule r failed at path /metadata/labels/"
PASSED = "validation rule 'r' passed."


def test_rows_derived_by_scans_are_not_sent(benches: Any) -> None:
    rules = rule("r", NAMED) + rule("s", TEAM, "Audit")
    bench = benches(policy("p", rules))
    assert bench.ask(**REVIEWED)["allowed"]
    bench.audit()
    assert bench.told() == []
    assert bench.journal.written == 0


def test_only_rules_that_read_the_review_are_sent(benches: Any) -> None:
    bench = benches(policy("p", rule("r", BY) + rule("s", NAMED) + rule("t", NAMED)))
    assert bench.ask(**REVIEWED)["allowed"]
    assert bench.told() == [("p", "r", "pass", PASSED)]


def test_row_equals_the_reports(benches: Any) -> None:
    bench = benches(policy("p", rule("r", NAMED), ONCE))
    bench.ask(**REVIEWED)
    row = Row(
        source="kyverno",
        policy="p",
        rule="r",
        result="pass",
        message=PASSED,
        scored=True,
        category="Best Practices",
        severity="high",
        properties={"process": "admission review"},
    )
    assert bench.recorded() == [(WEB, [row])]


def test_audited_results_are_available_with_the_answer(benches: Any) -> None:
    """Otherwise a kill -9 after the answer would lose them permanently."""
    bench = benches(policy("p", rule("r", TEAM, "Audit"), ONCE))
    assert bench.ask(**REVIEWED)["allowed"]
    assert bench.told() == [("p", "r", "fail", FAILURE)]
    bench.audit()
    assert bench.told() == []


def test_long_work_does_not_delay_the_answer(benches: Any, monkeypatch: Any) -> None:
    """An auditing rule must not make the webhook time out."""
    path = "kyverno_mp.webhook.review.review.RESULTS_AHEAD_NS_MAX"
    monkeypatch.setattr(path, -1)
    bench = benches(policy("p", rule("r", TEAM, "Audit"), ONCE))
    assert bench.ask(**REVIEWED)["allowed"]
    assert bench.told() == []
    bench.audit()
    assert bench.told() == [("p", "r", "fail", FAILURE)]
    assert bench.records.errors == []


def test_calls_do_not_delay_the_answer(benches: Any) -> None:
    """The result of a rule with an external call follows with the audit."""
    more = "context: [{name: v, apiCall: {urlPath: /version}}],"
    denies = 'deny: {conditions: {any: [{key: "{{ v }}", operator: Equals, value: x}]}}'
    rules = rule("r", denies, "Audit", more) + rule("s", TEAM, "Audit")
    bench = benches(
        policy("p", rules, ONCE) + policy("q", rule("r", TEAM, "Audit"), ONCE)
    )
    bench.ask(**REVIEWED)
    assert bench.told() == [("q", "r", "fail", FAILURE)]
    bench.audit()
    found = bench.told()
    assert [one[:3] for one in found] == [("p", "r", "error"), ("p", "s", "fail")]


def test_denied_requests_have_no_results(benches: Any) -> None:
    bench = benches(
        policy("p", rule("r", TEAM) + rule("s", NAMED), ONCE)
        + policy("q", rule("r", NAMED, "Audit"), ONCE)
    )
    assert not bench.ask(**REVIEWED)["allowed"]
    bench.audit()
    assert bench.told() == []


def test_ignored_enforced_error_is_reported(benches: Any) -> None:
    broken = 'pattern: {metadata: {name: "{{ request.object.nothing }}"}}'
    more = "background: false\n  failurePolicy: Ignore"
    bench = benches(policy("p", rule("r", broken), more))
    assert bench.ask(**REVIEWED)["allowed"]
    assert [one[:3] for one in bench.told()] == [("p", "r", "error")]


@pytest.mark.parametrize(
    "changes",
    [
        {"dryRun": True},
        {"operation": "DELETE", "object": None, "oldObject": POD},
        {"object": {**POD, "metadata": {"name": "web", "namespace": "a"}}},
        {
            "object": {**POD, "kind": "Event"},
            "kind": {"version": "v1", "kind": "Event"},
        },
    ],
)
def test_reviews_without_results(benches: Any, changes: Any) -> None:
    deletes = policy("p", rule("r", NAMED) + rule("s", NAMED, "Audit"), ONCE)
    bench = benches(deletes.replace("kinds: [Pod]", "kinds: [Pod, Event]"))
    assert bench.ask(**{**REVIEWED, **changes})["allowed"]
    bench.audit()
    assert bench.told() == []


def test_policies_excluded_from_reports(benches: Any) -> None:
    label = 'reports.kyverno.io/disabled: ""'
    bench = benches(policy("p", rule("r", NAMED), ONCE, label))
    bench.ask(**REVIEWED)
    assert bench.told() == []


@pytest.mark.parametrize(
    ("reporting", "expected"),
    [
        (REPORTING, {"pass", "fail", "skip"}),
        (replace(REPORTING, words=frozenset({"fail"})), {"fail"}),
        (replace(REPORTING, words=frozenset({"skip", "pass"})), {"skip", "pass"}),
        (replace(REPORTING, types=TYPES - {"validate"}), set()),
        (None, set()),
    ],
)
def test_results_are_configurable(benches: Any, reporting: Any, expected: Any) -> None:
    never = """preconditions: {all: [
        {key: "{{ request.operation }}", operator: Equals, value: DELETE}]},"""
    rules = rule("a", NAMED) + rule("b", TEAM, "Audit") + rule("c", NAMED, more=never)
    bench = benches(policy("p", rules, ONCE), reporting)
    bench.ask(**REVIEWED)
    assert {one[2] for one in bench.told()} == expected


def test_everything_is_sent_without_scans(benches: Any) -> None:
    rules = rule("r", NAMED)
    bench = benches(policy("p", rules), replace(REPORTING, scans=False))
    bench.ask(**REVIEWED)
    assert bench.told() == [("p", "r", "pass", PASSED)]


def test_subject_of_a_subresource_is_its_parent(benches: Any) -> None:
    scale = policy("p", rule("r", "pattern: {spec: {replicas: 1}}"))
    bench = benches(scale.replace("[Pod]", '["Deployment/scale"]'))
    assert bench.ask(
        kind={"group": "autoscaling", "version": "v1", "kind": "Scale"},
        resource={"group": "apps", "version": "v1", "resource": "deployments"},
        subResource="scale",
        name="web",
        namespace="a",
        operation="UPDATE",
        object={
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": "web", "namespace": "a", "uid": "d1"},
            "spec": {"replicas": 1},
        },
    )["allowed"]
    ((subject, rows),) = bench.recorded()
    assert subject == Subject(
        api_version="apps/v1", kind="Deployment", name="web", namespace="a"
    )
    assert [row.result for row in rows] == ["pass"]


def test_results_for_secrets_have_no_message(benches: Any) -> None:
    body = 'message: "{{ request.object.data }}", deny: {}'
    secret = policy(
        "p", rule("r", body, "Audit").replace("message: needed, ", ""), ONCE
    )
    bench = benches(secret.replace("[Pod]", "[Secret]"))
    bench.ask(
        kind={"group": "", "version": "v1", "kind": "Secret"},
        object={**POD, "kind": "Secret", "data": {"a": "geheim"}},
    )
    assert [(one[2], one[3]) for one in bench.told()] == [("fail", "")]


MUTATE = """\
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: add}
spec:
  rules:
  - name: label
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {+(seen): "yes"}}}}
"""


def test_mutations_are_sent_by_name_before_there_is_a_uid(benches: Any) -> None:
    bench = benches(MUTATE)
    fresh = {**POD, "metadata": {"name": "web", "namespace": "a"}}
    assert bench.ask(b"/mutate", **{**REVIEWED, "object": fresh})["patch"]
    ((subject, rows),) = bench.recorded()
    assert subject == Subject(api_version="v1", kind="Pod", name="web", namespace="a")
    told = [(row.policy, row.rule, row.result, row.message) for row in rows]
    assert told == [("add", "label", "pass", "mutated Pod/web in namespace a")]
    # An object has no identity until the API server chooses its name.
    nameless = {**POD, "metadata": {"generateName": "web-", "namespace": "a"}}
    bench.ask(b"/mutate", object=nameless, name="", namespace="a")
    bench.ask(b"/mutate", **{**REVIEWED, "dryRun": True})
    assert bench.told() == []


def test_mutations_can_be_excluded(benches: Any) -> None:
    bench = benches(MUTATE, replace(REPORTING, types=frozenset({"validate"})))
    assert bench.ask(b"/mutate", **REVIEWED)["patch"]
    assert bench.told() == []


VERIFY = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: signed}
spec:
  failurePolicy: Ignore
  rules:
  - name: verify
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["*"]
      mutateDigest: false
      attestors:
      - entries: [{keys: {publicKeys: KEY, rekor: {ignoreTlog: true}}}]
"""


def test_results_of_image_rules_are_recorded(benches: Any) -> None:
    """The rule reads no registry here, and its result says so."""
    image = f"r.test/a/b@sha256:{'0' * 64}"
    given = {**POD, "spec": {"containers": [{"name": "c", "image": image}]}}
    bench = benches(VERIFY)
    asked = {**REVIEWED, "object": given}
    assert bench.ask(b"/mutate", **asked)["patch"]
    ((_, rows),) = bench.recorded()
    (row,) = rows
    assert (row.policy, row.rule, row.result) == ("signed", "verify", "error")
    assert row.message.startswith(f"failed to verify image {image}: ")
    others = benches(VERIFY, replace(REPORTING, types=frozenset({"mutate"})))
    assert others.ask(b"/mutate", **asked)["patch"]
    assert others.told() == []


def test_many_results_take_several_records(benches: Any) -> None:
    count = 2 * RESULT_ROWS_MAX + 1
    rules = "".join(rule(f"r{n}", NAMED) for n in range(count))
    bench = benches(policy("p", rules, ONCE))
    bench.ask(**REVIEWED)
    sizes = [len(rows) for _, rows in bench.recorded()]
    assert sizes == [RESULT_ROWS_MAX, RESULT_ROWS_MAX, 1]


def test_full_journal_counts_drops(benches: Any) -> None:
    bench = benches(policy("p", rule("r", NAMED), ONCE), ring_bytes=300)
    for _ in range(3):
        assert bench.ask(**REVIEWED)["allowed"]
    assert bench.journal.waiting == 1
    assert bench.records.errors == [JOURNAL_FULL, JOURNAL_FULL]


def test_oversized_record_is_counted(benches: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("kyverno_mp.webhook.results.sink.RESULT_RECORD_BYTES_MAX", 100)
    bench = benches(policy("p", rule("r", NAMED), ONCE))
    assert bench.ask(**REVIEWED)["allowed"]
    assert bench.records.errors == [TOO_LARGE]
    assert bench.told() == []


def test_no_record_is_built_without_results(benches: Any, monkeypatch: Any) -> None:
    """This is the reports pool's cost for a review whose results a scan derives."""
    calls: list[str] = []

    def counted(name: str) -> Any:
        inner = getattr(ResultSink, name)

        def call(*given: Any, **named: Any) -> Any:
            calls.append(name)
            return inner(*given, **named)

        return call

    for name in ("takes", "validated", "mutated", "_append", "_row"):
        monkeypatch.setattr(ResultSink, name, counted(name))
    bench = benches(policy("p", rule("r", NAMED) + rule("s", TEAM, "Audit")))
    bench.ask(**REVIEWED)
    bench.audit()
    assert calls == []
    assert bench.journal.written == 0
