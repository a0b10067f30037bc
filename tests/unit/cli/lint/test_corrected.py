"""``lint`` and ``explain`` name each policy whose answer differs from Kyverno 1.18.

A failure means: after an upgrade, an answer changes and nobody was told, or policies
are named that never change. Source: docs/differences.md (corrected).
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.cli.lint.corrected.report import CORRECTED
from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import Command

ROOT = Path(__file__).parents[4]
_PODS: Json = {"any": [{"resources": {"kinds": ["Pod"]}}]}


def ruled(match: Json = _PODS, /, **rule: Json) -> dict[str, Json]:
    """Return a ClusterPolicy with one rule."""
    rule = {"name": "r", "match": match, **rule}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"background": False, "rules": [rule]},
    }


def denied(key: Json, operator: str, value: Json) -> dict[str, Json]:
    condition = {"key": key, "operator": operator, "value": value}
    return ruled(
        validate={"message": "m", "deny": {"conditions": {"all": [condition]}}}
    )


def queried(query: str) -> dict[str, Json]:
    return denied(f"{{{{ {query} }}}}", "Equals", "x")


def loaded(query: str) -> dict[str, Json]:
    """Return a policy whose context has the query, which needs no braces there."""
    entry = {"name": "x", "variable": {"jmesPath": query}}
    return ruled(context=[entry], validate={"message": "m", "deny": {}})


def merged(patch: Json) -> dict[str, Json]:
    return ruled(mutate={"patchStrategicMerge": patch})


def nested(query: str, *, context: str) -> dict[str, Json]:
    """Return a foreach in a foreach; ``context``: the level that defines ``svc``."""
    entry: Json = [{"name": "svc", "variable": {"value": "x"}}]
    condition = {"key": f"{{{{ {query} }}}}", "operator": "Equals", "value": "x"}
    inner: dict[str, Json] = {
        "list": "request.object.spec.x",
        "deny": {"conditions": {"all": [condition]}},
    }
    outer: dict[str, Json] = {"list": "request.object.spec.y", "foreach": [inner]}
    (inner if context == "inner" else outer)["context"] = entry
    return ruled(validate={"message": "m", "foreach": [outer]})


def of_cel(
    kind: str, operations: list[str], *, background: bool = False, **spec: Json
) -> dict[str, Json]:
    """Return a policy in CEL on Pods."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    constraints = {"resourceRules": [{**rule, "operations": operations}]}
    spec = {"matchConstraints": constraints, **spec}
    if kind == "ValidatingPolicy":
        spec["evaluation"] = {"background": {"enabled": background}}
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": spec,
    }


def validating(
    expression: str, *operations: str, background: bool = False
) -> dict[str, Json]:
    validations: Json = [{"expression": expression, "message": "m"}]
    return of_cel(
        "ValidatingPolicy",
        list(operations),
        background=background,
        validations=validations,
    )


def mutating(expression: str, variable: str = "1") -> dict[str, Json]:
    mutation = {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": expression},
    }
    variables: Json = [{"name": "v", "expression": variable}]
    return of_cel(
        "MutatingPolicy", ["CREATE"], mutations=[mutation], variables=variables
    )


def json_patching(pointer: str) -> dict[str, Json]:
    patch = f'[JSONPatch{{op: "add", path: "{pointer}", value: true}}]'
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}
    return of_cel("MutatingPolicy", ["CREATE"], mutations=[mutation])


def excluding(match: Json, exclude: Json) -> dict[str, Json]:
    return ruled(match, exclude=exclude, validate={"message": "m", "deny": {}})


_SERVICES: Json = {"resources": {"kinds": ["Service"]}}
_CONFIG_MAPS: Json = {"resources": {"kinds": ["ConfigMap"]}}
_NAMED: Json = {"resources": {"kinds": ["Service"], "names": ["a"]}}
_LABELS = "Object{spec: Object.spec{hostNetwork: false}}"


_KEYLESS: Json = {
    "keyless": {"subject": "s", "issuer": "i", "rekor": {"url": "https://r.io"}}
}


def verifying(*blocks: dict[str, Json]) -> dict[str, Json]:
    """Return a policy with entries of ``verifyImages``."""
    return ruled(
        verifyImages=[
            {"imageReferences": ["r.io/*"], "failureAction": "Enforce", **block}
            for block in blocks
        ]
    )


NAMED: dict[str, list[dict[str, Json]]] = {
    "corrected.empty_map": [
        merged({"spec": {"securityContext": {}}}),
        merged({"spec": {"volumes": [{"name": "a", "emptyDir": {}}]}}),
        merged({"spec": {"+(securityContext)": {}}}),
        merged({"spec": {"ingress": [{}]}}),
        ruled(
            mutate={
                "foreach": [
                    {
                        "list": "request.object.spec.x",
                        "patchStrategicMerge": {"spec": {"a": {}}},
                    }
                ]
            }
        ),
    ],
    "corrected.null_label": [
        merged({"metadata": {"labels": {"a": None}}}),
        merged({"metadata": {"annotations": {"a": None, "b": "c"}}}),
    ],
    "corrected.not_equals": [
        denied("8080", "NotEquals", "abc"),
        denied("8080", "NotEqual", "80*"),
        denied(5, "NotEquals", 5.5),
        denied("{{ request.object.metadata.labels.x || '' }}", "NotEquals", "abc"),
        denied("1Gi", "NotEquals", "{{ request.object.spec.x }}"),
        denied("{{ request.object.spec.replicas }}", "NotEquals", 1.5),
    ],
    "corrected.milli": [
        denied("1000m", "GreaterThan", 1),
        denied(0.5, "LessThan", "600m"),
        denied("{{ request.object.spec.resources.limits.cpu }}", "GreaterThan", 2),
        denied("1000m", "Equals", 1),
    ],
    "corrected.list_key": [
        denied([1, 2], "GreaterThan", 1),
        denied("{{ request.object.spec.x[].y }}", "LessThan", 1),
        denied("{{ request.object.spec.x[?a].y }}", "DurationGreaterThan", "1h"),
        denied("{{ map(&y, request.object.spec.x) }}", "GreaterThan", 1),
    ],
    "corrected.label_match": [
        loaded('label_match(`{"a": {"b": "c"}}`, request.object.metadata.labels)'),
        loaded('label_match(`{"a": ["b"]}`, `{}`)'),
    ],
    "corrected.arithmetic": [
        queried("add('1m', '1s')"),
        queried("subtract('1h', request.object.spec.x)"),
        queried("sum(['5m', '1h'])"),
    ],
    "corrected.braces": [
        queried('merge(request.object, `{"a": {"b": ""}}`)'),
        ruled(
            context=[
                {
                    "name": "x",
                    "variable": {"value": "{{ request.object.{a: {b: spec}} }}"},
                }
            ],
            validate={"message": "m", "deny": {}},
        ),
    ],
    "corrected.foreach_context": [nested("svc", context="inner")],
    "corrected.empty_set": [
        excluding({"resources": {"kinds": ["Service"]}}, {"any": [_NAMED]}),
        excluding(
            {"any": [_SERVICES, {"resources": {"kinds": ["Pod"]}}]},
            {"any": [_SERVICES]},
        ),
    ],
    "corrected.absent_object": [
        validating("oldObject == null || object.spec == oldObject.spec", "CREATE"),
        validating("object == null", "DELETE"),
        validating("oldObject == null", "UPDATE", background=True),
        validating("'spec' in oldObject", "*"),
    ],
    "corrected.image_record": [
        verifying({"attestors": [{"entries": [_KEYLESS]}]}),
        verifying({"mutateDigest": True}, {"attestations": [{"type": "t"}]}),
        verifying({"key": "k"}),
    ],
    "corrected.autogen": [
        mutating("Object {\n spec: Object.spec{hostNetwork: false}}"),
        mutating("Object{spec: Object .spec{hostNetwork: false}}"),
        mutating(
            "has(object.spec.x) ? Object{} : Object{spec: Object.spec{hostNetwork:"
            " false}}"
        ),
        mutating(_LABELS, "object.spec.hostNetwork"),
        mutating("Object{metadata: Object.metadata{labels: {'a': 'object.spec'}}}"),
        json_patching("/spec/hostPID"),
    ],
}
"""Code -> documents that 1.18 answers otherwise."""

SILENT: list[dict[str, Json]] = [
    merged({"spec": {"(securityContext)": {}, "a": [], "b": {"c": "d"}}}),
    merged({"metadata": {"labels": {"a": "b"}}, "spec": {"x": None}}),
    ruled(validate={"message": "m", "pattern": {"spec": {"a": {}}}}),
    denied("{{ request.operation }}", "NotEquals", "DELETE"),
    denied("{{ request.namespace }}", "NotEquals", "kube-system"),
    denied("{{ length(request.object.spec.x) }}", "NotEquals", "abc"),
    denied("8080", "NotEquals", "80"),
    denied("abc", "NotEquals", "8080"),
    denied(5, "NotEquals", 5.0),
    denied("8080", "Equals", "abc"),
    denied("1h", "GreaterThan", 1),
    denied("1000m", "GreaterThan", "1"),
    denied("{{ request.object.spec.replicas }}", "GreaterThan", 1),
    denied("1000m", "DurationGreaterThan", 1),
    denied("{{ length(request.object.spec.x[].y) }}", "GreaterThan", 1),
    denied("{{ request.object.spec.x[].y | [0] }}", "GreaterThan", 1),
    denied("{{ request.object.spec.x[].y }}", "AnyIn", [1]),
    queried('label_match(`{"a": "b"}`, request.object.metadata.labels)'),
    queried("add('1m', '2m')"),
    queried("add(request.object.spec.x, `1`)"),
    queried("request.object.{a: spec}"),
    queried("merge(request.object, `{}`)"),
    nested("svc", context="outer"),
    excluding({"any": [_SERVICES]}, {"any": [_NAMED]}),
    validating("oldObject == null", "UPDATE", "DELETE"),
    validating("object == null", "CREATE", "UPDATE"),
    validating("has(oldObject.spec) || oldObject.?spec.hasValue()", "CREATE"),
    validating("object.spec.oldObject == null", "CREATE"),
    mutating(_LABELS),
    mutating("Object{\n  spec: Object.spec{ hostNetwork: false }\n}"),
    mutating(_LABELS, "object.metadata.name"),
    json_patching("/metadata/finalizers/-"),
    verifying({"mutateDigest": True}),
]


def _found(command: Command, file: Path, document: dict[str, Json]) -> list[Any]:
    file.write_text(yaml.safe_dump(document))
    done = command("lint", file, "-o", "json", "--target", "cli")
    found = [one for one in json.loads(done.out) if one["code"] in CORRECTED]
    assert {one["level"] for one in found} <= {"note"}
    return found


@pytest.mark.parametrize("code", CORRECTED)
def test_each_correction_is_named_with_its_place(
    command: Command, tmp_path: Path, code: str
) -> None:
    for document in NAMED[code]:
        found = _found(command, tmp_path / "p.yaml", document)
        assert {one["code"] for one in found} == {code}, document
        assert all(re.match(r"p:spec\.\w+", one["subject"]) for one in found)


@pytest.mark.parametrize("document", SILENT)
def test_what_never_changes_is_not_named(
    command: Command, tmp_path: Path, document: dict[str, Json]
) -> None:
    assert not _found(command, tmp_path / "p.yaml", document)


@pytest.mark.parametrize("code", CORRECTED)
def test_explain_names_the_same(command: Command, tmp_path: Path, code: str) -> None:
    document, file = NAMED[code][0], tmp_path / "p.yaml"
    found = _found(command, file, document)
    (shown,) = json.loads(command("explain", file, "-o", "json").out)
    assert {(code, one["path"]) for one in shown["corrected"]} == {
        (one["code"], one["subject"].removeprefix("p:")) for one in found
    }
    assert f"[{code}]" in command("explain", file).out


def test_each_policy_has_a_line_of_its_own(command: Command, tmp_path: Path) -> None:
    """Equal notes share a line; these name the policies."""
    text = yaml.safe_dump(merged({"spec": {"securityContext": {}}}))
    both = f"{text}---\n{text.replace('name: p', 'name: q')}"
    (tmp_path / "p.yaml").write_text(both)
    done = command("lint", tmp_path / "p.yaml")
    assert done.out.count("[corrected.empty_map]") == 2
    assert "(p:spec" in done.out
    assert "(q:spec" in done.out


def test_conditions_of_clean_up_and_exceptions(
    command: Command, tmp_path: Path
) -> None:
    conditions = {"any": [{"key": "8080", "operator": "NotEquals", "value": "abc"}]}
    exception: dict[str, Json] = {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "match": _PODS,
            "exceptions": [{"policyName": "q", "ruleNames": ["r"]}],
            "conditions": conditions,
        },
    }
    cleanup: dict[str, Json] = {
        "apiVersion": "kyverno.io/v2",
        "kind": "ClusterCleanupPolicy",
        "metadata": {"name": "p"},
        "spec": {"match": _PODS, "schedule": "* * * * *", "conditions": conditions},
    }
    for document in (exception, cleanup):
        (found,) = _found(command, tmp_path / "p.yaml", document)
        assert found["code"] == "corrected.not_equals"
        assert found["subject"] == "p:spec.conditions.any[0]"


def test_the_upgrade_page_lists_each_correction() -> None:
    text = (ROOT / "docs" / "upgrade.md").read_text()
    assert set(re.findall(r"`(corrected\.\w+)`", text)) == set(CORRECTED)
