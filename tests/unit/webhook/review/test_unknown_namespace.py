"""Requests in an unknown namespace, and policies that need its labels.

A failure means: requests that the real program denies are admitted, or policies that
need no labels deny requests for no reason.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from kyverno_mp.ir.admission_policy import ConstraintsIR, ResourceRuleIR
from kyverno_mp.ir.match import FilterIR, KindIR, MatchIR, SelectorIR, SelectorTermIR
from kyverno_mp.ir.rules import ExceptionIR
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import UNREAD_LABELS, Request
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.program.rule_gate import LinkedException
from kyverno_mp.program.validating_policy.constraints import fault_or_match
from kyverno_mp.snapshot.policies import PoliciesWriter, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import still_ns

FAIL, IGNORE = b"/validate/fail", b"/validate/ignore"
SELECTED = {"namespaceSelector": {"matchLabels": {"env": "prod"}}}
NOT_FOUND = 'failed to create policy context: namespace "default" not found'


class Namespaces:
    """Namespaces of a cluster; ``labels`` of "default" are None when it is absent."""

    def __init__(self, labels: Mapping[str, str] | None) -> None:
        self._labels = labels

    def labels(self, _namespace: str) -> Mapping[str, str] | None:
        return self._labels


def rule(
    *, match: Any = None, exclude: Any = None, action: str = "Enforce", **validate: Any
) -> dict[str, Any]:
    """Return a rule that denies every Pod that it matches."""
    return {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"], **(match or {})}}]},
        **({"exclude": {"any": [{"resources": exclude}]}} if exclude else {}),
        "validate": {
            "failureAction": action,
            "message": "no",
            "deny": {},
            **validate,
        },
    }


def ask(
    folder: Path,
    rules: list[dict[str, Any]],
    labels: Mapping[str, str] | None = None,
    path: bytes = FAIL,
    spec: dict[str, Any] | None = None,
    **changes: Any,
) -> tuple[bool, str]:
    """Return (allowed, message) of a review by one policy."""
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"background": False, "rules": rules, **(spec or {})},
    }
    policy_set = PolicyStore(lambda _namespace: True).update(
        Changes({"p.yaml": orjson.dumps(raw)}, ())
    )
    assert not policy_set.problems
    file = folder / "policies.segment"
    file.write_bytes(
        PoliciesWriter().encode(policy_set.encoded, generation=1, salt=bytes(16))
    )
    file.chmod(0o600)
    folder.chmod(0o700)
    segment = PolicySegment(Segment.attach(file, "policies"))
    source: SegmentSource[LinkedRule] = SegmentSource(segment, link_rule)
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    service = Service(
        Dependencies(
            records=StubRecords(),
            monotonic_ns=still_ns,
            namespaces=Namespaces(labels),
        ),
        handlers_of(ValidationPlanner(Engine(ClusterData(), clock), source)),
    )
    answer = service.answer(SHARED[path], b"", review(**changes))
    assert isinstance(answer, bytes)
    response = json.loads(answer)["response"]
    return response["allowed"], response.get("status", {}).get("message", "")


OVERRIDES = [
    {"action": "Audit", "namespaceSelector": {"matchLabels": {"env": "dev"}}},
]


@pytest.mark.parametrize(
    ("rules", "spec"),
    [
        ([rule(match=SELECTED)], {}),
        ([rule(exclude={"kinds": ["Pod"], **SELECTED})], {}),
        # Upstream reads the namespace before it checks that the rule does not match.
        ([rule(match={**SELECTED, "selector": {"matchLabels": {"no": "such"}}})], {}),
        ([rule(failureActionOverrides=OVERRIDES)], {}),
        ([rule(match=SELECTED, action="Audit")], {"emitWarning": True}),
        ([rule(match={"selector": {"matchLabels": {"no": "such"}}}),
          {**rule(match=SELECTED), "name": "s"}], {}),
    ],
)  # fmt: skip
def test_rules_that_need_its_labels_fail(
    rules: list[Any], spec: dict[str, Any], tmp_path: Path
) -> None:
    assert ask(tmp_path, rules, spec=spec) == (False, NOT_FOUND)
    spec = {**spec, "failurePolicy": "Ignore"}
    assert ask(tmp_path, rules, spec=spec, path=IGNORE) == (False, NOT_FOUND)


@pytest.mark.parametrize(
    ("rules", "changes", "allowed"),
    [
        ([rule()], {}, False),
        ([rule(match={"selector": {"matchLabels": {"no": "such"}}})], {}, True),
        # An auditing policy denies nothing.
        ([rule(match=SELECTED, action="Audit")], {}, True),
        ([rule(match=SELECTED)], {"namespace": ""}, True),
        (
            [rule(match={"kinds": ["Namespace"], **SELECTED})],
            {"kind": {"group": "", "version": "v1", "kind": "Namespace"}},
            True,
        ),
    ],
)
def test_other_rules_are_evaluated(
    rules: list[Any],
    changes: dict[str, Any],
    allowed: bool,  # noqa: FBT001 - a column of the table
    tmp_path: Path,
) -> None:
    found, message = ask(tmp_path, rules, **changes)
    assert found is allowed
    assert "not found" not in message


@pytest.mark.parametrize(("labels", "allowed"), [({"env": "prod"}, False), ({}, True)])
def test_known_namespace_is_evaluated_by_its_labels(
    labels: dict[str, str],
    allowed: bool,  # noqa: FBT001 - a column of the table
    tmp_path: Path,
) -> None:
    found, message = ask(tmp_path, [rule(match=SELECTED)], labels)
    assert found is allowed
    assert "not found" not in message


ENFORCING = [
    {"action": "Enforce", "namespaceSelector": {"matchLabels": {"env": "prod"}}},
]


@pytest.mark.parametrize(
    "rules",
    [
        [rule(match=SELECTED)],
        [rule(exclude={"kinds": ["Pod"], **SELECTED})],
        [rule(failureActionOverrides=OVERRIDES)],
        [rule(failureActionOverrides=ENFORCING, action="Audit")],
    ],
)
def test_without_any_list_of_namespaces_selectors_do_not_admit(
    rules: list[Any], tmp_path: Path
) -> None:
    """A service without a cluster and without --resources knows no labels."""
    found, message = ask(tmp_path, rules, UNREAD_LABELS)
    assert found is False
    assert 'labels of namespace "default" are unknown' in message
    assert "--resources" in message


@pytest.mark.parametrize(
    ("rules", "changes", "allowed"),
    [
        ([rule()], {}, False),
        ([rule(match=SELECTED, action="Audit")], {}, True),
        ([rule(match=SELECTED)], {"namespace": ""}, True),
    ],
)
def test_without_any_list_of_namespaces_other_rules_are_evaluated(
    rules: list[Any],
    changes: dict[str, Any],
    allowed: bool,  # noqa: FBT001 - a column of the table
    tmp_path: Path,
) -> None:
    found, message = ask(tmp_path, rules, UNREAD_LABELS, **changes)
    assert (found, "unknown" in message) == (allowed, False)


def test_without_any_list_of_namespaces_a_selector_in_cel_is_a_fault() -> None:
    """It is a fault only if everything else matches; a Namespace has its own labels."""
    selector = SelectorIR(labels=(("env", "prod"),))
    rules = (ResourceRuleIR(("",), ("v1",), ("pods", "namespaces"), (), ("*",)),)
    constraints = ConstraintsIR(rules, namespace_selector=selector)

    def fault(kind: str, resource: str, **facts: Any) -> str:
        place = {"group": "", "version": "v1", "resource": resource}
        request = Request(
            kind=kind, namespace="n", review_request={"resource": place}, **facts
        )
        return fault_or_match(constraints, request)[1]

    assert '"n" are unknown' in fault("Pod", "pods", labels_known=False)
    assert fault("Pod", "pods") == ""
    assert fault("Secret", "secrets", labels_known=False) == ""
    assert fault("Namespace", "namespaces", labels_known=False) == ""


def test_without_any_list_of_namespaces_no_selected_exception_applies() -> None:
    """It would exempt objects of namespaces that its selector may exclude."""
    kinds = KindIR("*", "*", "Pod", "")
    absent = SelectorIR(terms=(SelectorTermIR("env", "DoesNotExist"),))
    for selector, applies in ((None, True), (absent, False)):
        match = MatchIR(
            filters=(FilterIR(kinds=(kinds,), namespace_selector=selector),)
        )
        exception = LinkedException(ExceptionIR("ns/e", match))
        pod = {"kind": "Pod", "metadata": {"name": "p"}}
        request = Request(kind="Pod", namespace="n", object=pod, labels_known=False)
        assert exception.applies(request, None) is applies  # type: ignore[arg-type]  # unread
