"""A policy with failurePolicy Ignore cannot bypass the denial of another policy."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ApiRequest, ClusterData
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import still_ns

ASKS = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: asks}
spec:
  failurePolicy: Ignore
  rules:
  - name: asks
    match: {any: [{resources: {kinds: [Pod]}}]}
    context: [{name: x, apiCall: {urlPath: /version}}]
    validate:
      failureAction: Enforce
      message: asks
      deny: {conditions: {all: [{key: "{{ x }}", operator: Equals, value: 1}]}}
---
"""
FORBIDS = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: forbids}
spec:
  failurePolicy: Ignore
  applyRules: All
  rules:
  - name: forbids
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {failureAction: ACTION, message: never, deny: {}}
"""


class _Silent:
    """An API server that never answers."""

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        del request, deadline_ns
        raise DeadlinePassed("kube.deadline", "no answer in time")


def ask(policies: str) -> Any:
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    engine = Engine(ClusterData(api_calls=_Silent()), clock)
    planner = ValidationPlanner(engine, SegmentSource(segment_of(policies), link_rule))
    service = Service(
        Dependencies(
            records=StubRecords(),
            monotonic_ns=still_ns,
        ),
        handlers_of(SnapshotEvaluate(lambda: planner)),
    )
    answer = service.answer(SHARED[b"/validate/ignore"], b"", review())
    assert isinstance(answer, bytes)
    return json.loads(answer)["response"]


@pytest.mark.parametrize(("action", "allowed"), [("Enforce", False), ("Audit", True)])
def test_denial_by_another_policy_stands(
    action: str,
    allowed: bool,  # noqa: FBT001 - a table
) -> None:
    forbids = FORBIDS.replace("ACTION", action)
    answer = ask(ASKS + forbids)
    assert answer["allowed"] is allowed
    if allowed:
        assert "kube.deadline" in answer["warnings"][0]
    else:
        assert "never" in answer["status"]["message"]


def test_ignored_failure_alone_is_allowed_with_a_warning() -> None:
    answer = ask(ASKS)
    assert answer["allowed"]
    assert "kube.deadline" in answer["warnings"][0]


def test_later_rules_of_a_failed_policy_are_not_evaluated() -> None:
    """With applyRules One, the first rule that decides is the last one."""
    first = ASKS.removesuffix("---\n").replace("rules:", "applyRules: One\n  rules:")
    second = FORBIDS.replace("ACTION", "Enforce").partition("rules:\n")[2]
    answer = ask(first + second)
    assert answer["allowed"]
    assert "kube.deadline" in answer["warnings"][0]
