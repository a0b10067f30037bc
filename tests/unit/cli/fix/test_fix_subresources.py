"""Rules on connections to Pods become rules on these subresources, or are refused.

A failure means: a rewritten policy lets somebody run a command in a Pod whose
ClusterPolicy forbids it, or it judges other requests.
"""

from typing import Any

import pytest

from kyverno_mp.admission.decode import decode as decode_review
from kyverno_mp.cli.fix.rewrite.inputs import reviews
from kyverno_mp.cli.fix.rewrite.policy import resources_of
from kyverno_mp.cli.fix.rewrite.proof import Pair
from kyverno_mp.cli.fix.to_cel import rewrite
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode

Json = Any
CONNECTS = {
    "key": "{{ request.operation || 'BACKGROUND' }}",
    "operator": "Equals",
    "value": "CONNECT",
}


def policy(
    key: str, value: Json, *kinds: str, operator: str = "Equals", **rule: Json
) -> Json:
    condition = {"key": f"{{{{ {key} }}}}", "operator": operator, "value": value}
    match = {"any": [{"resources": {"kinds": list(kinds or ("Pod/exec",))}}]}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "validationFailureAction": "Enforce",
            "background": False,
            "rules": [
                {
                    "name": "r",
                    "match": match,
                    "preconditions": {"all": [CONNECTS]},
                    "validate": {"deny": {"conditions": {"any": [condition]}}},
                    **rule,
                }
            ],
        },
    }


def spec_of(raw: Json) -> Json:
    outcome = rewrite(raw)
    assert (outcome.reason, list(outcome.differences)) == ("", [])
    assert outcome.document is not None
    return outcome.document["spec"]


@pytest.mark.parametrize(
    ("raw", "expression"),
    [
        (policy("request.namespace", "vault"), "request.namespace != 'vault'"),
        (policy("request.name", "db-*"), "!request.name.startsWith('db-')"),
        (
            policy("request.object.command[1]", "-c"),
            "object.command[?1].orValue('') != '-c'",
        ),
        (
            policy("request.object.stdin || `false`", True),
            "!object.?stdin.orValue(false)",
        ),
        (
            policy("length(request.object.ports || `[]`)", 1, "v1/Pod/portforward"),
            "size(object.?ports.orValue([])) != 1",
        ),
    ],
)
def test_a_rule_on_connections_is_one_on_the_subresource(
    raw: Json, expression: str
) -> None:
    spec = spec_of(raw)
    (rule,) = spec["matchConstraints"]["resourceRules"]
    (kind,) = raw["spec"]["rules"][0]["match"]["any"][0]["resources"]["kinds"]
    assert rule["operations"] == ["CONNECT"]
    assert rule["resources"] == [f"pods/{kind.rpartition('/')[2]}"]
    assert [one["expression"] for one in spec["validations"]] == [expression]
    assert "matchConditions" not in spec


def test_the_pod_of_a_connection_is_read() -> None:
    path = "/api/v1/namespaces/{{ request.namespace }}/pods/{{ request.name }}"
    call = {"urlPath": path, "jmesPath": "metadata.labels.exec || ''"}
    entry = {"name": "exec", "apiCall": call}
    spec = spec_of(policy("exec", "false", context=[entry]))
    assert spec["variables"] == [
        {
            "name": "exec",
            "expression": (
                "dyn(resource.Get('v1', 'pods', request.namespace, request.name))"
            ),
        }
    ]


@pytest.mark.parametrize(
    ("raw", "old", "new"),
    [
        (policy("request.namespace", "vault"), "vault", "vaultz"),
        (policy("request.name", "db-*"), "startsWith", "endsWith"),
        (policy("request.name", "db-*"), "request.name", "request.namespace"),
        (policy("request.object.command[1]", "-c"), "[?1]", "[?0]"),
        # A command that is missing is an error of the ClusterPolicy, which denies.
        (policy("request.object.command[1]", "-c"), ".command", ".?command"),
        (policy("request.object.command[1]", "-c"), "!=", "=="),
    ],
)
def test_the_requests_show_a_defect(raw: Json, old: str, new: str) -> None:
    before = decode(raw)
    assert isinstance(before, ClusterPolicy)
    document = rewrite(raw).document
    assert document is not None
    (validation,) = document["spec"]["validations"]
    assert old in validation["expression"]
    validation["expression"] = validation["expression"].replace(old, new)
    tried = reviews(before.spec.rules, sorted(resources_of(before)))
    assert any(Pair(before, document).differences(tried))


@pytest.mark.parametrize("other", ["pods/attach", "pods/*", "pods"])
def test_a_rewrite_for_other_subresources_is_noticed(other: str) -> None:
    raw = policy("request.namespace", "vault")
    before = decode(raw)
    assert isinstance(before, ClusterPolicy)
    document = rewrite(raw).document
    assert document is not None
    document["spec"]["matchConstraints"]["resourceRules"][0]["resources"] = [other]
    tried = reviews(before.spec.rules, sorted(resources_of(before)))
    assert any(Pair(before, document).differences(tried))


def test_requests_are_those_of_the_api_server() -> None:
    """They connect, have no old object, and objects without metadata."""
    before = decode(policy("request.object.command[0]", "tar"))
    assert isinstance(before, ClusterPolicy)
    (resource,) = resources_of(before)
    asked = [decode_review(body) for _, body in reviews(before.spec.rules, [resource])]
    assert {(one.operation, one.kind) for one in asked} == {("CONNECT", "Pod")}
    assert {one.subresource for one in asked} == {"exec", "attach"}
    assert not any(one.old_object or "metadata" in one.object for one in asked)


REFUSED = [
    (policy("request.name", "a", "Pod/exec", "Pod"), "subresources beside other kinds"),
    (policy("request.name", "a", "Pod/log"), "kind Pod/log"),
    (policy("request.name", "a", "Deployment/scale"), "kind Deployment/scale"),
    (policy("request.name", "a", "apps/v1/Pod/exec"), "kind apps/v1/Pod/exec"),
    (
        policy(
            "request.name",
            "a",
            match={"any": [{"resources": {"kinds": ["Pod/exec"], "names": ["a"]}}]},
        ),
        "subresources by more than their kinds",
    ),
    (
        policy(
            "request.name",
            "a",
            exclude={"any": [{"resources": {"namespaces": ["a"]}}]},
        ),
        "exclude beside a subresource",
    ),
    (
        policy(
            "request.name",
            "a",
            match={
                "any": [
                    {"resources": {"kinds": ["Pod/exec"], "operations": ["UPDATE"]}}
                ]
            },
        ),
        "operations on which the rule is not evaluated",
    ),
    (
        policy("request.name", "a", validate={"pattern": {"stdin": False}}),
        "kind Pod/exec",
    ),
    (
        policy("request.object.command[-1]", "a"),
        "JMESPath IndexExpression",
    ),
    (
        policy("request.object.metadata.name", "a"),
        "Equals of a value of unknown type",
    ),
]


@pytest.mark.parametrize(("raw", "reason"), REFUSED)
def test_connections_without_an_equivalent_are_named(raw: Json, reason: str) -> None:
    outcome = rewrite(raw)
    assert (outcome.documents, outcome.reason) == ((), f"rule r: {reason}")


def test_a_rule_on_connections_beside_another_one() -> None:
    raw = policy("request.name", "a")
    rule = policy("request.name", "a", "Pod", preconditions={})["spec"]["rules"][0]
    raw["spec"]["rules"].append({**rule, "name": "s"})
    assert rewrite(raw).reason == "rules on subresources beside other rules"
