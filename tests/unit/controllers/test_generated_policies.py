"""Policies generated for the API server, and the reasons why a policy has none.

Expected objects and messages follow Kyverno's builder and checker. Where upstream loses
a part of a policy, the generated policy must be complete or must not exist.
"""

from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.admission_policies.from_cel_policy import (
    from_mutating_policy,
    from_validating_policy,
)
from kyverno_mp.controllers.admission_policies.from_cluster_policy import from_rules
from kyverno_mp.controllers.admission_policies.generated import Generated
from kyverno_mp.controllers.admission_policies.plans import Plans
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy, decode_cel_policy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    ValidatingPolicy,
    decode_validating_policy,
)
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.reading.decode import decode

Json = Any
SKIP = "skip generating ValidatingAdmissionPolicy"
ALL = ["CREATE", "UPDATE", "CONNECT", "DELETE"]


def served(
    plural: str, kind: str, group: str = "", *, namespaced: bool = True
) -> Resource:
    return Resource(
        group=group, version="v1", plural=plural, kind=kind, namespaced=namespaced
    )


DIRECTORY = Directory(
    [
        served("pods", "Pod"),
        served("secrets", "Secret"),
        served("namespaces", "Namespace", namespaced=False),
        served("nodes", "Node", namespaced=False),
        served("deployments", "Deployment", "apps"),
        served("statefulsets", "StatefulSet", "apps"),
        served("events", "Event"),
        served("events", "Event", "events.k8s.io"),
    ]
)


def filtered(*kinds: str, **resources: Json) -> Json:
    return {"resources": {"kinds": list(kinds), **resources} if kinds else resources}


def cluster_policy(
    match: Json, exclude: Json = None, *, cel: Json = None, **more: Json
) -> ClusterPolicy:
    """Return a policy; ``more`` are its rule's fields, or its spec's with ``spec_``."""
    body = {"generate": True, "expressions": [{"expression": "a", "message": "m"}]}
    rule: Json = {
        "name": "r",
        "match": match,
        "validate": {"cel": {**body, **(cel or {})}},
    }
    spec: Json = {"rules": [rule]}
    if exclude is not None:
        rule["exclude"] = exclude
    for name, value in more.items():
        if name.startswith("spec_"):
            spec[name.removeprefix("spec_")] = value
        elif name.startswith("validate_"):
            rule["validate"][name.removeprefix("validate_")] = value
        else:
            rule[name] = value
    found = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p", "uid": "u"},
            "spec": spec,
        }
    )
    assert isinstance(found, ClusterPolicy)
    return found


def exception(*filters: Json, **spec: Json) -> PolicyException:
    found = decode(
        {
            "apiVersion": "kyverno.io/v2",
            "kind": "PolicyException",
            "metadata": {"name": "e", "namespace": "n"},
            "spec": {
                "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
                "match": {"any": list(filters)},
                **spec,
            },
        }
    )
    assert isinstance(found, PolicyException)
    return found


def rule(group: str, *resources: str, operations: Json = ALL, **more: Json) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": list(resources),
        "scope": "*",
        **more,
    }


def made(policy: ClusterPolicy, *exceptions: PolicyException) -> Generated:
    return from_rules(policy, exceptions, DIRECTORY)


def constraints(policy: ClusterPolicy, *exceptions: PolicyException) -> Json:
    found = made(policy, *exceptions)
    assert found.policy is not None, found.message
    return found.policy["spec"]["matchConstraints"]


def conditions(policy: ClusterPolicy, *exceptions: PolicyException) -> list[str]:
    found = made(policy, *exceptions)
    assert found.policy is not None, found.message
    given = found.policy["spec"].get("matchConditions", [])
    return [one["expression"] for one in given]


def test_names_labels_owner_and_binding_equal_upstreams() -> None:
    policy = cluster_policy({"any": [filtered("Deployment")]})
    found = made(policy)
    metadata = {
        "name": "cpol-p",
        "labels": {"app.kubernetes.io/managed-by": "kyverno"},
        "ownerReferences": [
            {
                "apiVersion": "kyverno.io/v1",
                "kind": "ClusterPolicy",
                "name": "p",
                "uid": "u",
            }
        ],
    }
    assert found.kind == "ValidatingAdmissionPolicy"
    assert found.policy == {
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": [rule("apps", "deployments")],
            },
            "validations": [{"expression": "a", "message": "m"}],
        },
    }
    assert found.binding == {
        "metadata": {**metadata, "name": "cpol-p-binding"},
        "spec": {"policyName": "cpol-p", "validationActions": ["Audit", "Warn"]},
    }


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ["Audit", "Warn"]),
        ({"spec_validationFailureAction": "enforce"}, ["Deny"]),
        ({"spec_validationFailureAction": "Enforce"}, ["Deny"]),
        (
            {
                "spec_validationFailureAction": "Enforce",
                "validate_failureAction": "Audit",
            },
            ["Audit", "Warn"],
        ),
    ],
)
def test_actions_of_the_binding(more: Json, expected: list[str]) -> None:
    found = made(cluster_policy({"any": [filtered("Pod")]}, **more))
    assert found.binding is not None
    assert found.binding["spec"]["validationActions"] == expected


@pytest.mark.parametrize("given", ["Ignore", "Fail"])
def test_failure_policy_is_not_copied(given: str) -> None:
    found = made(
        cluster_policy({"any": [filtered("Secret")]}, spec_failurePolicy=given)
    )
    assert found.policy is not None
    assert found.policy["spec"]["failurePolicy"] == "Fail"


def test_parameters_conditions_and_variables_are_copied() -> None:
    cel = {
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "paramRef": {"name": "c", "namespace": "n", "parameterNotFoundAction": "Deny"},
        "variables": [{"name": "x", "expression": "1"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}],
    }
    policy = cluster_policy(
        {"any": [filtered("Pod")]},
        cel=cel,
        celPreconditions=[{"name": "c", "expression": "d"}],
        spec_webhookConfiguration={
            "matchConditions": [{"name": "c", "expression": "e"}]
        },
    )
    found = made(policy)
    assert found.policy is not None
    assert found.binding is not None
    spec = found.policy["spec"]
    assert spec["paramKind"] == cel["paramKind"]
    assert spec["variables"] == cel["variables"]
    assert spec["auditAnnotations"] == cel["auditAnnotations"]
    assert found.binding["spec"]["paramRef"] == cel["paramRef"]
    # The API server rejects two conditions with one name.
    assert spec["matchConditions"] == [
        {"name": "c", "expression": "d"},
        {"name": "c-2", "expression": "e"},
    ]


MATCHES: list[tuple[Json, Json]] = [
    ({"any": [filtered("Pod")]}, [rule("", "pods", "pods/ephemeralcontainers")]),
    ({"any": [filtered("*")]}, [{**rule("*", "*"), "apiVersions": ["*"]}]),
    (
        {"any": [filtered("StatefulSet", "Deployment", operations=["CREATE"])]},
        [rule("apps", "deployments", "statefulsets", operations=["CREATE"])],
    ),
    (
        {"any": [filtered("Deployment", names=["a"], name="b")]},
        [rule("apps", "deployments", resourceNames=["a", "b"])],
    ),
    # Upstream uses the first filter's operations and names for both.
    (
        {
            "any": [
                filtered("Deployment", operations=["CREATE"]),
                filtered("StatefulSet", operations=["UPDATE"], names=["a"]),
            ]
        },
        [
            rule("apps", "deployments", operations=["CREATE"]),
            rule("apps", "statefulsets", operations=["UPDATE"], resourceNames=["a"]),
        ],
    ),
    ({"resources": {"kinds": ["Secret"]}}, [rule("", "secrets")]),
]


@pytest.mark.parametrize(("match", "expected"), MATCHES)
def test_kinds_become_rules(match: Json, expected: Json) -> None:
    assert constraints(cluster_policy(match))["resourceRules"] == expected


def test_namespaces_and_selectors() -> None:
    within = {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": ["a", "b"],
    }
    labels = {"matchLabels": {"x": "y"}}
    given = filtered(
        "Secret", namespaces=["a", "b"], namespaceSelector=labels, selector=labels
    )
    found = constraints(cluster_policy({"all": [given]}))
    assert found["namespaceSelector"] == {**labels, "matchExpressions": [within]}
    assert found["objectSelector"] == labels


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (filtered("*", namespaces=["a"]), ["request.namespace in ['a']"]),
        (filtered("Node", namespaces=["it's"]), ["request.namespace in ['it\\'s']"]),
        (
            filtered("*", namespaceSelector={"matchLabels": {"x": "y"}}),
            ['request.namespace != "" && request.resource.resource != "namespaces"'],
        ),
        (filtered("Secret", namespaces=["a"]), []),
        (filtered("*"), []),
    ],
)
def test_objects_without_a_namespace(given: Json, expected: Json) -> None:
    """For the API server, a namespace selector matches objects without a namespace."""
    assert conditions(cluster_policy({"any": [given]})) == expected


EXCLUDES: list[tuple[Json, Json, list[str]]] = [
    (filtered("Secret"), [rule("", "secrets")], []),
    (
        filtered("Secret", names=["a"], operations=["DELETE"]),
        [rule("", "secrets", operations=["DELETE"], resourceNames=["a"])],
        [],
    ),
    # Upstream excludes only the Namespaces.
    (
        filtered(namespaces=["a", "b"]),
        [rule("", "namespaces", resourceNames=["a", "b"])],
        ["!(request.namespace in ['a', 'b'])"],
    ),
    (
        filtered(namespaces=["a"], operations=["CREATE"]),
        [rule("", "namespaces", operations=["CREATE"], resourceNames=["a"])],
        ["!(request.namespace in ['a'] && request.operation in ['CREATE'])"],
    ),
    # Upstream loses these exclusions.
    (filtered(names=["a"]), None, ["!(request.name in ['a'])"]),
    (filtered(operations=["DELETE"]), None, ["!(request.operation in ['DELETE'])"]),
]


@pytest.mark.parametrize(("given", "rules", "expected"), EXCLUDES)
def test_exclude_and_exceptions(given: Json, rules: Json, expected: Json) -> None:
    match = {"any": [filtered("Secret", "Pod")]}
    policy = cluster_policy(match, {"any": [given]})
    assert constraints(policy).get("excludeResourceRules") == rules
    assert conditions(policy) == expected
    policy = cluster_policy(match)
    assert constraints(policy, exception(given)).get("excludeResourceRules") == rules
    assert conditions(policy, exception(given)) == expected


def test_exceptions_for_other_names_keep_their_names() -> None:
    """Upstream uses the first kind's names to exempt both kinds."""
    found = constraints(
        cluster_policy({"any": [filtered("Deployment", "StatefulSet")]}),
        exception(filtered("Deployment", names=["a"])),
        exception(filtered("StatefulSet", names=["b"])),
    )
    assert found["excludeResourceRules"] == [
        rule("apps", "deployments", resourceNames=["a"]),
        rule("apps", "statefulsets", resourceNames=["b"]),
    ]


PODS = {"any": [filtered("Pod")]}
SELECTOR = {"matchLabels": {"x": "y"}}
USERS = ": Roles / ClusterRoles / Subjects in `any/all` is not applicable."
NAMES = ": wildcards in resource name is not applicable."
EXCLUDED = (
    ": NamespaceSelector / ObjectSelector in the exclude block is not applicable."
)
OVERRIDE = {"action": "Audit", "namespaces": ["a"]}
SELECTED = {"action": "Audit", "namespaceSelector": SELECTOR}
REASONS: list[tuple[ClusterPolicy, str]] = [
    (
        cluster_policy(PODS, cel={"generate": False}),
        ": validate.cel.generate is not set to true.",
    ),
    (
        cluster_policy(PODS, spec_validationFailureActionOverrides=[OVERRIDE]),
        ": Namespaces in validationFailureActionOverrides is not applicable.",
    ),
    (
        cluster_policy(PODS, spec_validationFailureActionOverrides=[OVERRIDE] * 2),
        ": multiple validationFailureActionOverrides are not applicable.",
    ),
    (
        cluster_policy(PODS, validate_failureActionOverrides=[OVERRIDE]),
        ": Namespaces in validationFailureActionOverrides is not applicable.",
    ),
    (cluster_policy({**PODS, "roles": ["r"]}), USERS),
    (cluster_policy({"any": [{**filtered("Pod"), "clusterRoles": ["r"]}]}), USERS),
    (cluster_policy(PODS, {"any": [{**filtered("Pod"), "roles": ["r"]}]}), USERS),
    (
        cluster_policy({"any": [filtered("Pod", annotations={"a": "b"})]}),
        ": Annotations in resource description is not applicable.",
    ),
    (cluster_policy({"any": [filtered("Pod", names=["a*"])]}), NAMES),
    (cluster_policy({"any": [filtered("Pod", name="a?")]}), NAMES),
    (
        cluster_policy({"any": [filtered("Pod", namespaces=["a*"])]}),
        ": wildcards in namespace name is not applicable.",
    ),
    (
        cluster_policy({"all": [filtered("Pod")] * 2}),
        ": multiple 'all' in the match block is not applicable.",
    ),
    (
        cluster_policy(PODS, {"all": [filtered("Pod")] * 2}),
        ": multiple 'all' in the exclude block is not applicable.",
    ),
    (
        cluster_policy(
            {"any": [filtered("Pod", selector=SELECTOR), filtered("Secret")]}
        ),
        (
            ": NamespaceSelector / ObjectSelector across multiple resources in the"
            " match block are not applicable."
        ),
    ),
    (cluster_policy(PODS, {"any": [filtered("Pod", selector=SELECTOR)]}), EXCLUDED),
    (
        cluster_policy(PODS, {"any": [filtered("Pod", namespaces=["a"])]}),
        ": excluding a resource within a namespace is not applicable.",
    ),
    # Upstream would translate these policies incorrectly.
    (cluster_policy(PODS, {"resources": {"selector": SELECTOR}}), EXCLUDED),
    (cluster_policy(PODS, filtered("Pod", selector=SELECTOR)), EXCLUDED),
    (cluster_policy(PODS, filtered("Pod", namespaceSelector=SELECTOR)), EXCLUDED),
    (
        cluster_policy(PODS, filtered(namespaces=["a"], namespaceSelector=SELECTOR)),
        EXCLUDED,
    ),
    (cluster_policy(PODS, spec_admission=False), ": admission is set to false."),
    (
        cluster_policy(PODS, spec_validationFailureActionOverrides=[SELECTED]),
        ": NamespaceSelector in validationFailureActionOverrides is not applicable.",
    ),
    (
        cluster_policy(PODS, preconditions={"all": [{"key": 1, "operator": "Equals"}]}),
        ": preconditions are not applicable.",
    ),
    (
        cluster_policy(
            {"any": [filtered("Pod", namespaces=["a"]), filtered("Secret")]}
        ),
        ": Namespaces across multiple resources in the match block are not applicable.",
    ),
    (cluster_policy({"any": [filtered("Event")]}), ": no unique match for kind Event."),
    (cluster_policy({"any": [filtered("X")]}), ": no unique match for kind X."),
]


@pytest.mark.parametrize(("policy", "reason"), REASONS)
def test_reasons_against_generating(policy: ClusterPolicy, reason: str) -> None:
    assert made(policy) == Generated(message=f"{SKIP}{reason}")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            exception(
                filtered("Pod"),
                exceptions=[{"policyName": "p", "ruleNames": ["r", "s"]}],
            ),
            ": multiple ruleNames in PolicyException is not applicable.",
        ),
        (
            exception(filtered("Pod"), conditions={"all": []}),
            ": Conditions in PolicyException is not applicable.",
        ),
        (exception(filtered("Pod", names=["a*"])), NAMES),
        (exception({**filtered("Pod"), "roles": ["r"]}), USERS),
    ],
)
def test_exceptions_that_the_api_server_cannot_apply(
    given: PolicyException, reason: str
) -> None:
    assert made(cluster_policy(PODS), given).message == f"{SKIP}{reason}"


def test_rules_without_cel_and_several_rules() -> None:
    policy = cluster_policy(PODS)
    raw: Json = policy.raw()
    raw["spec"]["rules"] *= 2
    assert made_raw(raw).message == f"{SKIP}: multiple rules are not applicable."
    del raw["spec"]["rules"][1]
    raw["spec"]["rules"][0]["validate"] = {"message": "m", "pattern": {"a": "b"}}
    assert made_raw(raw).message == f"{SKIP} for non CEL rules."


def made_raw(raw: Json) -> Generated:
    found = decode(raw)
    assert isinstance(found, ClusterPolicy)
    return made(found)


RULES = [
    {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["deployments"],
    }
]


def validating(**spec: Json) -> ValidatingPolicy:
    found = decode_validating_policy(
        {
            "apiVersion": "policies.kyverno.io/v1beta1",
            "kind": "ValidatingPolicy",
            "metadata": {
                "name": "v",
                "uid": "u",
                "labels": {"reports.kyverno.io/disabled": "x"},
            },
            "spec": {
                "autogen": {"validatingAdmissionPolicy": {"enabled": True}},
                "matchConstraints": {"resourceRules": RULES},
                "validations": [{"expression": "x", "messageExpression": "y"}],
                **spec,
            },
        }
    )
    assert isinstance(found, ValidatingPolicy)
    return found


def mutating(**spec: Json) -> MutatingPolicy:
    found = decode_cel_policy(
        {
            "apiVersion": "policies.kyverno.io/v1beta1",
            "kind": "MutatingPolicy",
            "metadata": {"name": "m", "uid": "u"},
            "spec": {
                "autogen": {"mutatingAdmissionPolicy": {"enabled": True}},
                "matchConstraints": {
                    "resourceRules": RULES,
                    "objectSelector": SELECTOR,
                },
                "mutations": [
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}
                ],
                **spec,
            },
        }
    )
    assert isinstance(found, MutatingPolicy)
    return found


def exempting(*given: str, name: str = "e", **spec: Json) -> CelPolicyException:
    found = decode_validating_policy(
        {
            "apiVersion": "policies.kyverno.io/v1beta1",
            "kind": "PolicyException",
            "metadata": {"name": name, "namespace": "n"},
            "spec": {
                "policyRefs": [{"name": "v", "kind": "ValidatingPolicy"}],
                "matchConditions": [
                    {"name": f"c{number}", "expression": one}
                    for number, one in enumerate(given)
                ],
                **spec,
            },
        }
    )
    assert isinstance(found, CelPolicyException)
    return found


def test_validating_policy_is_copied_without_its_failure_policy() -> None:
    policy = validating(
        failurePolicy="Ignore",
        matchConditions=[{"name": "c", "expression": "d"}],
        variables=[{"name": "x", "expression": "1"}],
        validationActions=["Audit", "Warn"],
    )
    found = from_validating_policy(policy, [])
    assert found.policy is not None
    assert found.binding is not None
    assert found.policy["metadata"]["name"] == "vpol-v"
    assert found.policy["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "kyverno",
        "reports.kyverno.io/disabled": "true",
    }
    assert found.policy["spec"] == {
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": RULES},
        "matchConditions": [{"name": "c", "expression": "d"}],
        "variables": [{"name": "x", "expression": "1"}],
        "validations": [{"expression": "x", "messageExpression": "y"}],
    }
    assert found.binding["spec"] == {
        "policyName": "vpol-v",
        "validationActions": ["Audit", "Warn"],
    }


def test_without_actions_the_binding_denies() -> None:
    found = from_validating_policy(validating(), [])
    assert found.binding is not None
    assert found.binding["spec"]["validationActions"] == ["Deny"]


def test_mutating_policy_keeps_its_selectors() -> None:
    policy = mutating(failurePolicy="Ignore", reinvocationPolicy="IfNeeded")
    found = from_mutating_policy(policy, [])
    assert found.kind == "MutatingAdmissionPolicy"
    assert found.policy is not None
    assert found.binding is not None
    assert found.policy["metadata"]["name"] == "mpol-m"
    assert found.policy["spec"] == {
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": RULES,
            "objectSelector": SELECTOR,
        },
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}],
    }
    assert found.binding["spec"] == {"policyName": "mpol-m"}


CEL_REASONS: list[tuple[Generated, str]] = [
    (from_validating_policy(validating(autogen={}), []), "not enabled."),
    (
        from_validating_policy(
            validating(
                matchConstraints={
                    "resourceRules": [
                        {**RULES[0], "apiGroups": [""], "resources": ["pods"]}
                    ]
                }
            ),
            [],
        ),
        "pod controllers autogen is enabled.",
    ),
    (
        from_validating_policy(validating(evaluation={"mode": "JSON"}), []),
        "admission is not enabled.",
    ),
    (
        from_validating_policy(
            validating(evaluation={"admission": {"enabled": False}}), []
        ),
        "admission is not enabled.",
    ),
    (
        from_validating_policy(
            validating(
                matchConditions=[
                    {"name": "c", "expression": "'a' in exceptions.allowedValues"}
                ]
            ),
            [],
        ),
        "exceptions in matchConditions are not applicable.",
    ),
    (from_mutating_policy(mutating(autogen={}), []), "not enabled."),
    (
        from_mutating_policy(
            mutating(evaluation={"mutateExisting": {"enabled": True}}), []
        ),
        "mutateExisting and its targets are not applicable.",
    ),
    (
        from_mutating_policy(
            mutating(targetMatchConstraints={"resourceRules": RULES}), []
        ),
        "mutateExisting and its targets are not applicable.",
    ),
    (
        from_mutating_policy(
            mutating(targetMatchConditions=[{"name": "t", "expression": "true"}]), []
        ),
        "mutateExisting and its targets are not applicable.",
    ),
    (
        from_mutating_policy(mutating(evaluation={"useServerSideApply": True}), []),
        (
            "useServerSideApply is enabled, which mutates atomic fields that a native"
            " MutatingAdmissionPolicy rejects."
        ),
    ),
    (
        from_mutating_policy(
            mutating(auditAnnotations=[{"key": "k", "valueExpression": "'v'"}]), []
        ),
        "auditAnnotations are not applicable.",
    ),
]


@pytest.mark.parametrize(("found", "reason"), CEL_REASONS)
def test_reasons_against_generating_from_a_cel_policy(
    found: Generated, reason: str
) -> None:
    assert found.policy is None
    kind, _, rest = found.message.removeprefix("skip generating ").partition(": ")
    assert kind in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")
    assert rest == reason


A, B = "object.metadata.name == 'a'", 'object.metadata.namespace != "b"'
EXEMPTIONS: list[tuple[list[CelPolicyException], list[str], Json]] = [
    ([exempting(A)], [f"!({A})"], None),
    ([exempting(A), exempting(B, name="f")], [f"!({A})", f"!({B})"], None),
    # Upstream exempts objects that meet one of the conditions.
    ([exempting(A, B)], [f"!(({A}) && ({B}))"], None),
    ([exempting()], ["!(true)"], None),
    ([exempting(images=["i", "it's"])], [], {"allowedImages": "['i', 'it\\'s']"}),
    # Upstream exempts those objects and allows the image in all other objects.
    (
        [exempting(A, allowedValues=["x"]), exempting(B, allowedValues=["y"])],
        [],
        {"allowedValues": f"(({A}) ? ['x'] : []) + (({B}) ? ['y'] : [])"},
    ),
]


@pytest.mark.parametrize(("exceptions", "expected", "variables"), EXEMPTIONS)
def test_exceptions_of_a_cel_policy(
    exceptions: list[CelPolicyException], expected: list[str], variables: Json
) -> None:
    found = from_validating_policy(validating(), exceptions)
    assert found.policy is not None
    spec = found.policy["spec"]
    given = spec.get("matchConditions", [])
    assert [one["expression"] for one in given] == expected
    names = [one["name"] for one in given]
    assert len(set(names)) == len(names)
    filled = {one["name"]: one["expression"] for one in spec.get("variables", [])}
    assert (filled or None) == variables


UNCERTAIN = "matchConditions of PolicyException n/e are not applicable."
NAME = "object.metadata.name == 'a'"


def over(group: str, resource: str, *operations: str) -> Json:
    given = {
        "apiGroups": [group],
        "resources": [resource],
        "operations": list(operations),
    }
    return {"resourceRules": [{**RULES[0], **given}]}


@pytest.mark.parametrize(
    "expression",
    [
        "object.metadata.labels.a == 'b'",
        "object.spec.replicas > 1",
        "int(object.metadata.name) == 1",
        f"{NAME} || object.spec.x",
        f"{NAME})  || (1/0 == 1",
        "object.metadata.name == '''a'''",
        "object.metadata.name == 'a' // '",
        "has(object.spec.a.b)",
    ],
)
@pytest.mark.parametrize("more", [{}, {"images": ["i"]}, {"allowedValues": ["x"]}])
def test_exception_with_a_fallible_condition_keeps_the_webhook(
    expression: str, more: Json
) -> None:
    """A match condition that fails denies the request."""
    given = [exempting(expression, **more)]
    found = from_validating_policy(validating(), given)
    assert found == Generated(message=f"{SKIP}: {UNCERTAIN}")
    mutated = from_mutating_policy(mutating(), given)
    assert mutated == Generated(
        message=f"skip generating MutatingAdmissionPolicy: {UNCERTAIN}"
    )


@pytest.mark.parametrize(
    ("matched", "validates", "mutates"),
    [
        (over("apps", "deployments", "CREATE", "UPDATE"), True, True),
        # The review has no object, or the object has no namespace.
        (over("apps", "deployments", "UPDATE", "DELETE"), False, False),
        (over("apps", "deployments", "*"), False, False),
        (over("apps", "deployments", "CONNECT"), False, False),
        (over("apps", "*", "CREATE"), False, False),
        (over("*", "deployments", "CREATE"), False, False),
        (over("", "nodes", "CREATE"), False, False),
        # These reviews have no name.
        (over("authorization.k8s.io", "subjectaccessreviews", "CREATE"), False, False),
        (over("apps", "deployments/scale", "UPDATE"), False, False),
        # A generated name does not exist yet when policies mutate.
        (over("apps", "replicasets", "CREATE"), True, False),
        (over("apps", "replicasets", "UPDATE"), True, True),
    ],
)
def test_condition_is_translated_only_if_its_fields_exist(
    matched: Json, *, validates: bool, mutates: bool
) -> None:
    given = [exempting(NAME)]
    found = from_validating_policy(validating(matchConstraints=matched), given)
    assert (found.policy is not None) == validates
    found = from_mutating_policy(mutating(matchConstraints=matched), given)
    assert (found.policy is not None) == mutates
    given = [exempting("namespaceObject.metadata.name == 'a'")]
    found = from_mutating_policy(mutating(matchConstraints=matched), given)
    assert (found.policy is not None) == validates


def test_lists_of_exceptions_become_variables() -> None:
    policy = validating(
        variables=[{"name": "x", "expression": "exceptions.allowedImages"}],
        validations=[
            {
                "expression": "1 in exceptions.allowedValues",
                "messageExpression": "exceptions.allowedImages[0]",
            }
        ],
    )
    found = from_validating_policy(policy, [exempting(images=["i"])])
    assert found.policy is not None
    assert found.policy["spec"]["variables"] == [
        {"name": "allowedImages", "expression": "['i']"},
        {"name": "allowedValues", "expression": "[]"},
        {"name": "x", "expression": "variables.allowedImages"},
    ]
    assert found.policy["spec"]["validations"] == [
        {
            "expression": "1 in variables.allowedValues",
            "messageExpression": "variables.allowedImages[0]",
        }
    ]


def test_an_exception_that_expires_keeps_the_webhook() -> None:
    """The API server knows no end: the exemption would last as long as nobody acts."""
    policy = cluster_policy({"any": [filtered("Deployment")]})
    expiring = exception(filtered("Deployment", names=["a"]))
    metadata = msgspec.structs.replace(
        expiring.metadata,
        annotations={"kyverno-mp.io/expires": "2999-01-01T00:00:00Z"},
    )
    expiring = msgspec.structs.replace(expiring, metadata=metadata)
    plans = Plans(validating=True, mutating=True)
    pairs: Any = {"ValidatingAdmissionPolicy": None}
    lasting = exception(filtered("Deployment", names=["a"]))
    assert plans.of(policy, (lasting,), DIRECTORY, pairs).kind
    plan = plans.of(policy, (lasting, expiring), DIRECTORY, pairs)
    assert (plan.kind, plan.message) == (
        "",
        "skip generating ValidatingAdmissionPolicy: a PolicyException expires.",
    )
