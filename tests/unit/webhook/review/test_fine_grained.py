"""A policy with a separate path is evaluated there, or the review fails."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import route_of
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import still_ns

POLICY = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: own}
spec:
  failurePolicy: Fail
  webhookConfiguration:
    matchConditions: [{name: pods, expression: "object.kind == 'Pod'"}]
  rules:
  - name: never
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {failureAction: Enforce, message: "no", deny: {}}
"""
MUTATING = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: label}
spec:
  webhookConfiguration:
    matchConditions: [{name: pods, expression: "object.kind == 'Pod'"}]
  rules:
  - name: label
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {seen: "yes"}}}}
"""


@pytest.fixture
def service() -> Service:
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    engine = Engine(ClusterData(), clock)
    segment = segment_of(POLICY + "---\n" + MUTATING)
    planner = ValidationPlanner(engine, SegmentSource(segment, link_rule))
    mutations = MutationPlanner(engine, SegmentSource(segment, link_mutation))
    return Service(
        Dependencies(
            records=StubRecords(),
            monotonic_ns=still_ns,
        ),
        handlers_of(
            SnapshotEvaluate(lambda: planner, segment.knows),
            SnapshotMutate(lambda: mutations, segment.knows),
        ),
    )


def ask(service: Service, path: bytes) -> Any:
    route = route_of(path)
    assert route is not None
    answer = service.answer(route, b"", review())
    assert isinstance(answer, bytes)
    return json.loads(answer)["response"]


@pytest.mark.parametrize("suffix", [b"fail", b"ignore"])
def test_policy_is_evaluated_with_any_path_suffix(
    service: Service, suffix: bytes
) -> None:
    """The webhook is registered shortly after its failurePolicy was changed."""
    denied = ask(service, b"/validate/%b/finegrained/own" % suffix)
    assert not denied["allowed"]
    assert 'never: "no"' in denied["status"]["message"]
    patched = ask(service, b"/mutate/%b/finegrained/label" % suffix)
    assert patched["patch"]


@pytest.mark.parametrize("webhook", [b"validate", b"mutate"])
def test_unknown_policy_is_a_failure(service: Service, webhook: bytes) -> None:
    """Another replica registered it; an allow would claim that it was evaluated."""
    denied = ask(service, b"/%b/fail/finegrained/team/new" % webhook)
    assert not denied["allowed"]
    assert (
        "failed to fetch policy with key: key team/new" in (denied["status"]["message"])
    )
    ignored = ask(service, b"/%b/ignore/finegrained/team/new" % webhook)
    assert ignored["allowed"]
    assert "team/new" in ignored["warnings"][0]


def test_known_policy_that_does_not_match_allows(service: Service) -> None:
    """Here a validating policy on the path of mutations."""
    assert ask(service, b"/mutate/fail/finegrained/own")["allowed"]


def test_policy_that_arrives_meanwhile_is_evaluated() -> None:
    """Otherwise the newest snapshot has it, but the snapshot that answers does not."""
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    engine = Engine(ClusterData(), clock)
    none, one = segment_of(""), segment_of(POLICY)
    in_force = [none]

    def knows(key: str) -> bool:
        in_force[0] = one
        return one.knows(key)

    def planner() -> ValidationPlanner:
        return ValidationPlanner(engine, SegmentSource(in_force[0], link_rule))

    service = Service(
        Dependencies(
            records=StubRecords(),
            monotonic_ns=still_ns,
        ),
        handlers_of(SnapshotEvaluate(planner, knows)),
    )
    assert not ask(service, b"/validate/fail/finegrained/own")["allowed"]
