"""Test which rules read more of a review than its object.

A failure means: a report lacks results that only a review can produce, or every result
of a common policy travels through the API server.
"""

from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode


def reads_review(**rule: Any) -> bool:
    """Return whether a scan cannot compute the results of a policy's only rule."""
    rule = {"validate": {"deny": {}}, "match": kinds("Pod"), **rule}
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {
                "name": "p",
                "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
            },
            "spec": {"rules": [{"name": "r", **rule}]},
        }
    )
    assert isinstance(document, ClusterPolicy)
    found = compile_policy(document).policy.review_rules
    assert found in ((), ("r",))
    return bool(found)


def kinds(*names: str, **more: Any) -> dict[str, Any]:
    return {"any": [{"resources": {"kinds": list(names), **more}}]}


def when(key: str, operator: str = "Equals", value: Any = "x") -> dict[str, Any]:
    return {"all": [{"key": key, "operator": operator, "value": value}]}


def denies(key: str) -> dict[str, Any]:
    return {"deny": {"conditions": when(key)}}


def cel(expression: str) -> dict[str, Any]:
    return {"cel": {"expressions": [{"expression": expression}]}}


OPERATION = "{{ request.operation }}"
WITH_DEFAULT = "{{ request.operation || 'BACKGROUND' }}"
ELEMENT = [{"list": "request.object.spec.containers", **denies("{{ element.name }}")}]


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"validate": {"message": "the request of {{ request.object.kind }}",
                      "pattern": {"spec": {"x": "{{ request.namespace }}"}}}},
        {"validate": {"foreach": ELEMENT}},
        {"validate": {"podSecurity": {"level": "baseline", "version": "latest"}}},
        {"validate": cel("object.spec.request == 'request'")},
        {"validate": denies("{{ request.object.spec.containers[?name=='a'] | [0] }}")},
        {"validate": denies("{{ length(request.object.spec.x || `[]`) }}")},
        # This precondition is common in the policy library.
        {"preconditions": when(WITH_DEFAULT, "NotEquals", "DELETE")},
        {"preconditions": when(OPERATION, "AnyIn", ["CREATE", "UPDATE"])},
        {"preconditions": when(OPERATION, "NotEquals", "CONNECT")},
        {"context": [{"name": "v", "variable": {"jmesPath": "request.object.a"}}]},
        {"match": kinds("Pod", operations=["CREATE"])},
        {"match": kinds("Pod", operations=["CREATE", "UPDATE"])},
        {"exclude": kinds("Pod", operations=["UPDATE", "DELETE"])},
        {"exclude": kinds("Pod/exec")},
        {"validate": {"assert": {"object": {"spec": {"(length(x))": 1}}}}},
    ],
)  # fmt: skip
def test_derived_by_a_scan(rule: dict[str, Any]) -> None:
    assert not reads_review(**rule)


@pytest.mark.parametrize(
    "rule",
    [
        {"validate": denies("{{ request.userInfo.username }}")},
        {"validate": denies("{{ request }}")},
        {"validate": denies("{{ to_string(request) }}")},
        {"validate": denies("{{ [request][0].operation }}")},
        {"validate": denies('{{ request."oldObject".spec }}')},
        {"validate": denies("{{ request.object.a || request.oldObject.a }}")},
        {"validate": denies("{{ serviceAccountName }}")},
        {"validate": denies("{{ {a: request.roles} }}")},
        {"validate": denies("{{ request.{{ request.object.field }} }}")},
        {"validate": {"deny": {"conditions": when(OPERATION, "Equals", "UPDATE")}}},
        {"validate": {"message": "by {{ request.userInfo.username }}", "deny": {}}},
        {"validate": {"pattern": {"spec": {"x": "a {{ request.name }}"}}}},
        {"validate": {"pattern": {"{{ request.operation }}": "x"}}},
        {"validate": {"foreach": [{"list": "request.oldObject.a", "deny": {}}]}},
        {"validate": {"foreach": [{"list": "request.object.a",
                                   **denies("{{ request.oldObject.b }}")}]}},
        {"validate": {"assert": {"(oldObject == null)": True}}},
        {"validate": cel("oldObject == null")},
        {"validate": cel("object.a.all(x, x != request.userInfo.username)")},
        {"validate": cel("true"),
         "celPreconditions": [{"name": "c", "expression": "request.operation != ''"}]},
        {"preconditions": when(OPERATION, "In", ["CREATE", "DELETE"])},
        {"preconditions": when(OPERATION, "Equals", "UPDATE")},
        {"preconditions": when(OPERATION, "NotEquals", "CREATE")},
        {"preconditions": when(OPERATION, "NotEquals", "UP*")},
        {"preconditions": when(OPERATION, "GreaterThan", "DELETE")},
        {"context": [{"name": "v", "variable": {"jmesPath": "request.operation"}}]},
        {"context": [{"name": "v", "variable": {"value": OPERATION}}]},
        {"context": [{"name": "a", "apiCall": {"urlPath": f"/x/{OPERATION}"}}]},
        {"match": kinds("Pod", operations=["UPDATE"])},
        {"match": kinds("Pod", "Deployment/scale")},
        {"match": {"any": [{"resources": {"kinds": ["Pod"]},
                            "subjects": [{"kind": "User", "name": "u"}]}]}},
        {"exclude": {"any": [{"clusterRoles": ["admin"]}]}},
        {"exclude": kinds("Pod", operations=["CREATE"])},
        {"reportProperties": {"by": "{{ request.userInfo.username }}"}},
    ],
)  # fmt: skip
def test_known_only_to_a_review(rule: dict[str, Any]) -> None:
    assert reads_review(**rule)
