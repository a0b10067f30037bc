"""Batches and explaining programs give the same results.

A failure means: one rule's exception or failure changes the results of other rules, or
an update of an object is evaluated by the wrong rules.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from kyverno_mp.admission.decode import decode as decode_review
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.engine import Clock, Engine, LinkedPolicy, link_policy
from kyverno_mp.program.plans.batch import Batch, Evaluation
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS, SKIP, PolicyResponse
from kyverno_mp.values.jsonvalue import Json

CLOCK = Clock(now=lambda: datetime(2026, 1, 2, tzinfo=UTC), monotonic_ns=lambda: 0)
BAD: dict[str, Any] = {"state": "bad"}
GOOD: dict[str, Any] = {"state": "good"}


class Late:
    """ConfigMaps that cannot be read before the deadline."""

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        del deadline_ns
        raise DeadlinePassed("test.late", f"{namespace}/{name}")


def linked(
    *rules: dict[str, Any],
    exceptions: Sequence[dict[str, Any]] = (),
    kinds: Sequence[str] = ("ConfigMap",),
    **spec: Any,
) -> LinkedPolicy:
    """Return the policy ``p`` with these rules, each for objects of the kinds."""
    match = {"any": [{"resources": {"kinds": list(kinds)}}]}
    named = [
        {"name": f"r{number}", "match": match, **rule}
        for number, rule in enumerate(rules)
    ]
    policy = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {**spec, "rules": named},
        }
    )
    assert isinstance(policy, ClusterPolicy)
    decoded = [decode(raw) for raw in exceptions]
    found = [one for one in decoded if isinstance(one, PolicyException)]
    assert len(found) == len(decoded)
    return link_policy(compile_policy(policy, found))


def thing(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "n"},
        "data": data,
    }


def created(data: dict[str, Any]) -> Request:
    return Request(kind="ConfigMap", version="v1", name="x", object=thing(data))


def updated(old: dict[str, Any], new: dict[str, Any]) -> Request:
    """Return the request of an update as the API server sends it."""
    kind = {"group": "", "version": "v1", "kind": "ConfigMap"}
    return reviewed(kind, thing(old), thing(new))


def reviewed(kind: dict[str, str], old: dict[str, Any], new: dict[str, Any]) -> Request:
    """Return the request of an update; ``kind`` is the kind in the review."""
    resource = {**kind, "resource": f"{kind['kind'].lower()}s"}
    del resource["kind"]
    request = {
        "uid": "u",
        "kind": kind,
        "requestKind": kind,
        "resource": resource,
        "requestResource": resource,
        "name": "x",
        "namespace": "n",
        "operation": "UPDATE",
        "userInfo": {"username": "alice"},
        "object": new,
        "oldObject": old,
    }
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request,
    }
    return decode_review(orjson.dumps(review))


def engine(cluster_data: ClusterData | None = None) -> Engine:
    return Engine(cluster_data or ClusterData(), CLOCK)


def opened(
    policy: LinkedPolicy, request: Request, cluster_data: ClusterData | None = None
) -> Evaluation:
    """Begin the evaluation of all rules of one policy."""
    batch = Batch([(policy.ir, policy.rules, "Enforce")])
    return batch.open(engine(cluster_data), request, 0)


def told(response: PolicyResponse) -> dict[str, tuple[str, str]]:
    """Return status and message of each rule; no message where none was created."""
    said = {one.rule: (one.status, one.message) for one in response.results}
    said |= dict.fromkeys(response.passed, (PASS, ""))
    return said | dict.fromkeys(response.skipped, (SKIP, ""))


def evaluated(policy: LinkedPolicy, request: Request) -> dict[str, tuple[str, str]]:
    """Return the batch's results; the explaining programs must agree."""
    evaluation = opened(policy, request)
    evaluation.run()
    assert evaluation.left_out == []
    (response,) = evaluation.responses()
    said = told(response)
    asked = engine()
    explained = told(asked.explain(policy, asked.open(request)))
    assert {name: status for name, (status, _) in said.items()} == {
        name: status for name, (status, _) in explained.items()
    }
    assert all(explained[name] == one for name, one in said.items() if one[1])
    return said


def statuses(policy: LinkedPolicy, request: Request) -> dict[str, str]:
    return {name: status for name, (status, _) in evaluated(policy, request).items()}


def pattern(state: str) -> dict[str, Any]:
    return {"validate": {"message": "no", "pattern": {"data": {"state": state}}}}


def deny(value: str, **more: Any) -> dict[str, Any]:
    """Return a rule that denies objects in this state."""
    state = "{{ request.object.data.state || 'none' }}"
    condition = {"key": state, "operator": "Equals", "value": value}
    body = {"message": "no", "deny": {"conditions": {"any": [condition]}}, **more}
    return {"validate": body}


def cel(state: str) -> dict[str, Any]:
    expression = {"expression": f"object.data.state != '{state}'", "message": "no"}
    return {"validate": {"cel": {"expressions": [expression]}}}


# PolicyExceptions with conditions (docs/behaviour/engine 8.7).


def exception(key: str) -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "legacy", "namespace": "ops"},
        "spec": {
            "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
            "conditions": {"all": [{"key": key, "operator": "Equals", "value": "yes"}]},
            "exceptions": [{"policyName": "p", "ruleNames": ["r0"]}],
        },
    }


EXCEPTED = (SKIP, "rule is skipped due to policy exceptionsops/legacy")


@pytest.mark.parametrize("rule", [pattern("good"), deny("bad"), cel("bad")])
@pytest.mark.parametrize(
    ("data", "covered"),
    [
        ({"state": "bad", "legacy": "yes"}, True),
        ({"state": "good", "legacy": "yes"}, True),
        ({"state": "bad", "legacy": "no"}, False),
        # A failing condition: the exception is ignored.
        ({"state": "bad"}, False),
    ],
)
def test_conditions_of_an_exception_see_the_request(
    rule: dict[str, Any],
    data: dict[str, Any],
    covered: bool,  # noqa: FBT001 - a column of the table
) -> None:
    only = exception("{{ request.object.data.legacy }}")
    said = evaluated(linked(rule, exceptions=[only]), created(data))
    if covered:
        assert said == {"r0": EXCEPTED}
    else:
        assert said["r0"][0] == FAIL


# allowExistingViolations (docs/behaviour/engine 6.8).

ENFORCED: dict[str, Any] = {"validationFailureAction": "Enforce"}
ALLOWED = (
    SKIP,
    "skipping the rule evaluation as pre-existing violations are allowed",
)
EXPLAINED = {"message": "no: {{ request.object.data.state }}"}
"""A text that only the explaining program produces."""


@pytest.mark.parametrize(
    "rule", [pattern("good"), deny("bad"), deny("bad", **EXPLAINED)]
)
def test_existing_violations_can_be_updated(rule: dict[str, Any]) -> None:
    policy = linked(rule, **ENFORCED)
    assert evaluated(policy, updated(BAD, BAD)) == {"r0": ALLOWED}
    assert statuses(policy, updated(GOOD, BAD)) == {"r0": FAIL}
    assert statuses(policy, updated(BAD, GOOD)) == {"r0": PASS}
    assert statuses(policy, created(BAD)) == {"r0": FAIL}


DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}
UNTYPED = {"metadata": {"name": "x", "namespace": "n"}, "data": BAD}
TYPED = {"apiVersion": "apps/v1", "kind": "Deployment", **UNTYPED}


# K8S: the kind in a review is written into its objects.
@pytest.mark.parametrize("old", [TYPED, UNTYPED])
@pytest.mark.parametrize("kind", ["apps/v1/Deployment", "Deployment", "apps/*/*"])
def test_the_old_object_is_matched_by_its_kind(old: dict[str, Any], kind: str) -> None:
    policy = linked(deny("bad"), kinds=[kind], **ENFORCED)
    assert evaluated(policy, reviewed(DEPLOYMENT, old, TYPED)) == {"r0": ALLOWED}


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (TYPED, SKIP),
        # An object with another kind or without a kind does not match the rule.
        ({**TYPED, "apiVersion": "v1"}, FAIL),
        ({**TYPED, "apiVersion": 1}, FAIL),
        ({**TYPED, "kind": "StatefulSet"}, FAIL),
        (UNTYPED, FAIL),
    ],
)
def test_old_object_has_a_kind_without_a_review(
    old: dict[str, Any], expected: str
) -> None:
    policy = linked(deny("bad"), kinds=["apps/v1/Deployment"], **ENFORCED)
    request = Request(
        group="apps",
        version="v1",
        kind="Deployment",
        name="x",
        operation="UPDATE",
        object=TYPED,
        old_object=old,
    )
    assert statuses(policy, request) == {"r0": expected}


@pytest.mark.parametrize("rule", [pattern("good"), deny("bad")])
def test_existing_violations_are_reported_in_audits(rule: dict[str, Any]) -> None:
    policy = linked(rule, validationFailureAction="Audit")
    assert statuses(policy, updated(BAD, BAD)) == {"r0": FAIL}


def test_existing_violations_of_cel_rules_are_denied() -> None:
    policy = linked(cel("bad"), **ENFORCED)
    assert evaluated(policy, updated(BAD, BAD)) == {"r0": (FAIL, "no")}


def test_existing_violations_can_be_denied() -> None:
    rule = deny("bad", allowExistingViolations=False)
    assert statuses(linked(rule, **ENFORCED), updated(BAD, BAD)) == {"r0": FAIL}


# Numbers of the object: float64 for a policy's first matched rule
# (docs/behaviour/engine 0.2).


@pytest.mark.parametrize("apply_rules", ["All", "One"])
def test_messages_use_the_numbers_of_the_verdict(apply_rules: str) -> None:
    """JMESPath compares only float64 here; later rules have int64."""
    text = "{{ to_string(request.object.data.n > `3`) }}"
    never = {"all": [{"key": "a", "operator": "Equals", "value": "b"}]}
    rule = deny("none", message=text)
    first = linked(rule, applyRules=apply_rules)
    request = updated({}, {"n": 5})
    assert evaluated(first, request) == {"r0": (FAIL, "true")}
    later = linked({**rule, "preconditions": never}, rule, applyRules=apply_rules)
    assert evaluated(later, request)["r1"] == (FAIL, "null")


# applyRules One: the first rule that passes or fails decides
# (docs/behaviour/engine 0.5).


@pytest.mark.parametrize(
    "rule", [pattern("bad"), deny("good"), deny("good", **EXPLAINED), cel("good")]
)
@pytest.mark.parametrize("second", [pattern("good"), deny("bad")])
def test_no_rule_is_evaluated_after_one_that_passed(
    rule: dict[str, Any], second: dict[str, Any]
) -> None:
    policy = linked(rule, second, applyRules="One")
    assert statuses(policy, created(BAD)) == {"r0": PASS}
    assert statuses(linked(rule, second), created(BAD)) == {"r0": PASS, "r1": FAIL}


@pytest.mark.parametrize("rule", [pattern("good"), deny("bad"), cel("bad")])
def test_no_rule_is_evaluated_after_one_that_failed(rule: dict[str, Any]) -> None:
    policy = linked(rule, pattern("bad"), applyRules="One")
    assert statuses(policy, created(BAD)) == {"r0": FAIL}


def test_skipped_rule_decides_nothing() -> None:
    never = {"all": [{"key": "a", "operator": "Equals", "value": "b"}]}
    first = {**deny("bad"), "preconditions": never}
    policy = linked(first, pattern("good"), applyRules="One")
    assert statuses(policy, created(BAD)) == {"r0": SKIP, "r1": FAIL}


# A rule that cannot be evaluated.

LATE = {
    "context": [{"name": "m", "configMap": {"name": "m", "namespace": "n"}}],
    **deny("{{ m.data.state }}"),
}
NOT_JUDGED = (ERROR, "not evaluated (test.late): n/m")


@pytest.mark.parametrize(
    ("apply_rules", "others"),
    [
        # The rule might have passed or failed, which would have skipped the next rule.
        ("One", {}),
        ("All", {"r1": FAIL}),
    ],
)
def test_rule_that_cannot_be_evaluated_is_an_error(
    apply_rules: str, others: dict[str, str]
) -> None:
    policy = linked(LATE, pattern("good"), applyRules=apply_rules)
    evaluation = opened(policy, created(BAD), ClusterData(config_maps=Late()))
    evaluation.run()
    assert [(ir.name, type(error)) for ir, error in evaluation.left_out] == [
        ("p", DeadlinePassed)
    ]
    (response,) = evaluation.responses()
    said = told(response)
    assert said.pop("r0") == NOT_JUDGED
    assert {name: status for name, (status, _) in said.items()} == others


def test_partial_results_are_kept_with_an_error_for_the_rest() -> None:
    policy = linked(deny("good"), pattern("good"))
    evaluation = opened(policy, created(BAD))
    error = DeadlinePassed("test.late", "n/m")
    (response,) = evaluation.so_far(error)
    assert told(response) == {"r0": NOT_JUDGED, "r1": NOT_JUDGED}
    assert evaluation.left_out == [(policy.ir, error)]
    evaluation.run()
    (response,) = evaluation.so_far(error)
    assert {n: s for n, (s, _) in told(response).items()} == {"r0": PASS, "r1": FAIL}
