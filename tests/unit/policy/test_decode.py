"""Decoding reports every structural problem of a document with its path."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.policy.reading.decode import KINDS, decode, examine, is_known_kind
from kyverno_mp.policy.reading.load import load
from tests.conformance.place import ABSENT, PRESENT, ROOT


def policy(**rule: Any) -> dict[str, Any]:
    base = {"name": "r", "match": {"any": [{"resources": {"kinds": ["Pod"]}}]}}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{**base, "validate": {"deny": {}}, **rule}]},
    }


def test_defaults_are_those_of_the_crd() -> None:
    document = decode(policy())
    assert isinstance(document, ClusterPolicy)
    spec = document.spec
    assert (spec.background, spec.admission, spec.emit_warning) == (True, True, False)
    assert spec.validation_failure_action == "Audit"
    rule = spec.rules[0]
    assert rule.validate is not None
    assert rule.validate.allow_existing_violations
    assert rule.skip_background_requests
    assert rule.types() == ("validate",)


def test_null_counts_as_absent() -> None:
    document = decode(policy(exclude=None, context=None, skipBackgroundRequests=None))
    assert isinstance(document, ClusterPolicy)
    rule = document.spec.rules[0]
    assert (rule.exclude, rule.context, rule.skip_background_requests) == (
        None,
        (),
        True,
    )


def test_free_form_fields_stay_raw() -> None:
    pattern = {"spec": {"=(a)": [None, 1, 1.5, "x", {"b": True}]}}
    document = decode(policy(validate={"pattern": pattern}))
    assert isinstance(document, ClusterPolicy)
    assert document.spec.rules[0].validate is not None
    assert document.spec.rules[0].validate.pattern == pattern


def test_all_problems_are_reported_at_once() -> None:
    raw = policy(
        match={"any": [{"resources": {"kinds": "Pod", "operations": ["PATCH"]}}]},
        contxt=[],
        validate={"failureAction": "Deny", "allowExistingViolations": "no"},
    )
    raw["spec"]["webhookTimeoutSeconds"] = "10"
    raw["spec"]["rules"].append({"name": "x" * 64})
    with pytest.raises(DocumentInvalid) as caught:
        decode(raw, file="f.yaml")
    found = {(one.code, one.path, one.rule) for one in caught.value.problems}
    assert found == {
        ("policy.wrong_type", "spec.rules[0].match.any[0].resources.kinds", "r"),
        (
            "policy.unsupported_value",
            "spec.rules[0].match.any[0].resources.operations[0]",
            "r",
        ),
        ("policy.unknown_field", "spec.rules[0].contxt", "r"),
        ("policy.unsupported_value", "spec.rules[0].validate.failureAction", "r"),
        ("policy.wrong_type", "spec.rules[0].validate.allowExistingViolations", "r"),
        ("policy.wrong_type", "spec.webhookTimeoutSeconds", ""),
        ("policy.too_long", "spec.rules[1].name", "x" * 64),
        ("policy.required", "spec.rules[1].match", "x" * 64),
    }
    assert caught.value.where.policy == "p"
    assert caught.value.where.file == "f.yaml"
    for one in caught.value.problems:
        assert one.path in caught.value.message


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (None, "policy.wrong_type"),
        ([], "policy.wrong_type"),
        ({}, "policy.unknown_kind"),
        ({"kind": "ClusterPolicy", "apiVersion": "v1"}, "policy.unknown_kind"),
        ({"kind": ["x"], "apiVersion": []}, "policy.unknown_kind"),
        ({"kind": "ClusterPolicy", "apiVersion": "kyverno.io/v1"}, "policy.required"),
    ],
)
def test_no_document(raw: Any, code: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        decode(raw)
    assert caught.value.code == code


def test_name_is_required() -> None:
    raw = policy()
    raw["metadata"] = {}
    assert [one.path for one in examine(raw).problems] == ["metadata.name"]
    raw["metadata"] = {"generateName": "p-"}
    assert not examine(raw).problems


def test_beta_has_no_inline_match() -> None:
    raw = policy(match={"resources": {"kinds": ["Pod"]}})
    assert not examine(raw).problems
    raw["apiVersion"] = "kyverno.io/v2beta1"
    paths = [one.path for one in examine(raw).problems]
    assert paths == ["spec.rules[0].match.resources"]


def test_deeply_nested_document_is_rejected_without_a_crash() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert (
        examine(policy(validate={"pattern": deep})).problems[0].code
        == "policy.too_deep"
    )


def test_exception() -> None:
    document = decode(
        {
            "apiVersion": "kyverno.io/v2",
            "kind": "PolicyException",
            "metadata": {"name": "e", "namespace": "n"},
            "spec": {
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "exceptions": [{"policyName": "p", "ruleNames": ["autogen-*"]}],
                "conditions": {"any": []},
            },
        }
    )
    assert isinstance(document, PolicyException)
    assert document.key == "n/e"
    assert document.spec.background
    assert document.spec.conditions is not None
    assert document.spec.conditions.raw() == {"any": []}


def test_policy_key_has_its_namespace() -> None:
    raw = policy()
    raw["kind"] = "Policy"
    document = decode(raw)
    assert isinstance(document, Policy)
    assert document.key == "default/p"


def test_records_survive_a_round_trip() -> None:
    for record, _ in KINDS.values():
        assert isinstance(
            msgspec.inspect.type_info(record.type), msgspec.inspect.StructType
        )
    document = decode(policy(preconditions={"all": []}))
    assert isinstance(document, ClusterPolicy)
    assert decode(document.raw()) == document


@pytest.mark.skipif(not PRESENT, reason=ABSENT)
def test_upstreams_policies_decode() -> None:
    """Users who migrate would otherwise lose the policies that cannot be decoded."""
    count = 0
    for suite in ("cli", "policies"):
        for path in sorted((ROOT / suite).rglob("*.yaml")):
            if not path.is_file() or ".chainsaw-test" in path.parts:
                continue
            for document in load(path.read_bytes(), file=str(path)):
                if is_known_kind(document.raw):
                    assert not examine(document.raw).problems, path
                    count += 1
    assert count > 300
