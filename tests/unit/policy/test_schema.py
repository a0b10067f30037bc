"""Documents of policies.kyverno.io are read, and their problems are reported."""

from typing import Any

import pytest

from kyverno_mp.policy.schema import is_cel_kind, schema_problems
from kyverno_mp.policy.stored import storage_problems


def policy(spec: Any, kind: str = "ValidatingPolicy", version: str = "v1") -> Any:
    return {
        "apiVersion": f"policies.kyverno.io/{version}",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": spec,
    }


X = {"name": "x", "expression": "true"}
Y = {"name": "y", "expression": "true"}
RULES = {"resourceRules": [{"apiGroups": [""], "resources": ["pods"]}]}
VALID = {
    "matchConstraints": RULES,
    "validations": [{"expression": "true", "message": None}],
    "webhookConfiguration": {"timeoutSeconds": 10},
}


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_valid(version: str) -> None:
    assert schema_problems(policy(VALID, version=version)) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"validatons": []}, 'spec.validatons: unknown field "validatons"'),
        ({"validations": {}}, "spec.validations: must be of type array, got object"),
        ({"validations": [{}]}, "spec.validations[0].expression: is required"),
        ({"validations": [{"expression": 1}]}, "must be of type string, got integer"),
        ({"validationActions": ["Denie"]}, 'must be one of "'),
        ({"webhookConfiguration": {"timeoutSeconds": True}}, "got boolean"),
        ({"variables": [X, Y, X]}, "spec.variables[2]: duplicate value x"),
        ({"matchConditions": [X, X]}, "spec.matchConditions[1]: duplicate value x"),
        (
            {"validationActions": ["Deny", "Audit", "Deny"]},
            'spec.validationActions[2]: duplicate value "Deny"',
        ),
    ],
)
def test_violations(change: dict[str, Any], told: str) -> None:
    found = [str(one) for one in schema_problems(policy({**VALID, **change}))]
    assert any(told in one for one in found), found


@pytest.mark.parametrize(
    ("kind", "spec", "told"),
    [
        ("ValidatingAdmissionPolicy", {"variables": [X, X]}, "spec.variables[1]"),
        (
            "ValidatingAdmissionPolicy",
            {"matchConditions": [X, Y, X]},
            "spec.matchConditions[2]",
        ),
        (
            "MutatingAdmissionPolicy",
            {"matchConditions": [X, X]},
            "spec.matchConditions[1]",
        ),
        ("MutatingAdmissionPolicy", {"variables": [X, X]}, ""),
        (
            "ValidatingAdmissionPolicyBinding",
            {"validationActions": ["Deny", "Deny"]},
            "spec.validationActions[1]",
        ),
        ("ValidatingAdmissionPolicy", {"variables": [X, Y]}, ""),
    ],
)
def test_repeated_keys_of_admission_policies(kind: str, spec: Any, told: str) -> None:
    """As in the real program, which then skips the document."""
    document = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": spec,
    }
    paths = [one.path for one in storage_problems(document)]
    assert paths == ([told] if told else [])


def test_repeated_audit_annotations_are_valid() -> None:
    """As in the real program: only some lists have keys."""
    given = {"key": "k", "valueExpression": "'v'"}
    assert schema_problems(policy({**VALID, "auditAnnotations": [given, given]})) == ()


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("ValidatedPolicy", "v1"),
        ("ValidatingPolicy", "v2"),
        ("NamespacedValidatingPolicy", "v1alpha9"),
    ],
)
def test_unknown_kinds(kind: str, version: str) -> None:
    (found,) = schema_problems(policy({}, kind, version))
    assert found.reason == (
        f"policy type not supported policies.kyverno.io/{version} {kind}"
    )


def test_deep_documents_do_not_exhaust_the_stack() -> None:
    deep: Any = "x"
    for _ in range(20_000):
        deep = [deep]
    assert schema_problems(policy({"matchConstraints": deep}))
    assert schema_problems(policy(deep))


def test_group() -> None:
    assert is_cel_kind(policy({}))
    assert not is_cel_kind({"apiVersion": "kyverno.io/v1"})
    assert not is_cel_kind([])
