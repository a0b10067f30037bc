"""Policies of the API server itself, from documents to verdicts."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kyverno_mp.compiler.admission_policy import compile_admission_policy
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
from kyverno_mp.policy.cel_kinds.admission_policy import decode_admission_policy
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program.admission_policy.mutate import LinkedAdmissionMutation, Mutated
from kyverno_mp.program.admission_policy.validate import LinkedValidation
from kyverno_mp.program.request import Request

DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
    "spec": {"replicas": 3, "args": ["a", "b"]},
}
RULE = {
    "apiGroups": ["apps"],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["deployments"],
}
MATCH: dict[str, Any] = {"resourceRules": [RULE]}
LIMIT = {"kind": "ConfigMap", "metadata": {"name": "limit"}, "data": {"max": "2"}}


def _document(kind: str, name: str, spec: Any) -> Any:
    version = "v1" if kind.startswith("Validating") else "v1beta1"
    return {
        "apiVersion": f"admissionregistration.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def _compiled(kind: str, spec: Any, bindings: dict[str, Any]) -> AdmissionPolicyIR:
    policy: Any = decode_admission_policy(_document(kind, "p", spec))
    bound: Any = [
        decode_admission_policy(
            _document(f"{kind}Binding", name, {"policyName": "p", **given})
        )
        for name, given in bindings.items()
    ]
    compiled = compile_admission_policy(policy, bound)
    packed = msgspec.msgpack.encode(compiled)
    return msgspec.msgpack.decode(packed, type=AdmissionPolicyIR)


def _request(resource: dict[str, Any], plural: str = "deployments") -> Request:
    group, _, version = resource["apiVersion"].rpartition("/")
    return Request(
        group=group,
        version=version,
        kind=resource["kind"],
        name=resource["metadata"].get("name", ""),
        namespace="shop",
        object=resource,
        namespace_labels={"team": "blue"},
        review_request={
            "resource": {"group": group, "version": version, "resource": plural}
        },
    )


def _runtime() -> Runtime:
    return Runtime(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic_ns=lambda: 0)


def _judge(
    spec: Any, bindings: dict[str, Any] | None = None, params: Any = ()
) -> tuple[str, str, str] | None:
    compiled = _compiled(
        "ValidatingAdmissionPolicy", {"matchConstraints": MATCH, **spec}, bindings or {}
    )
    linked = LinkedValidation(compiled)
    found = linked.evaluate(_request(DEPLOYMENT), _runtime(), params)
    if found is None:
        return None
    assert found.rule == "p"
    return found.status, found.message, found.properties.get("binding", "")


def _valid(expression: str, **more: Any) -> Any:
    return {"validations": [{"expression": expression, **more}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (_valid("object.spec.replicas == 3"), ("pass", "")),
        (
            _valid("object.spec.replicas < 3"),
            ("fail", "failed expression: object.spec.replicas < 3"),
        ),
        (_valid("false", message=" no "), ("fail", "no")),
        (
            _valid("false", messageExpression="object.kind + '!'"),
            ("fail", "Deployment!"),
        ),
        (_valid("namespaceObject.metadata.labels['team'] == 'blue'"), ("pass", "")),
        (
            _valid("object.no != 1"),
            (
                "error",
                "expression 'object.no != 1' resulted in error: no such key: no",
            ),
        ),
        (
            {
                "variables": [{"name": "n", "expression": "object.spec.replicas"}],
                **_valid("variables.n > 3", message="few"),
            },
            ("fail", "few"),
        ),
        (
            {
                "matchConditions": [{"name": "c", "expression": "false"}],
                **_valid("false"),
            },
            ("skip", "match conditions aren't met"),
        ),
        (
            {
                "failurePolicy": "Ignore",
                "matchConditions": [{"name": "c", "expression": "object.no == 1"}],
                **_valid("false"),
            },
            ("skip", "match conditions aren't met"),
        ),
        (
            {
                "matchConditions": [{"name": "c", "expression": "object.no == 1"}],
                **_valid("false"),
            },
            (
                "error",
                "expression 'object.no == 1' resulted in error: no such key: no",
            ),
        ),
    ],
)
def test_verdicts(spec: Any, expected: tuple[str, str]) -> None:
    assert _judge(spec) == (*expected, "")


def test_authorizer_is_not_declared() -> None:
    found = _judge(_valid("authorizer.path('/').check('get').allowed()"))
    assert found is not None
    assert found[0] == "error"
    assert "undeclared reference to 'authorizer'" in found[1]


@pytest.mark.parametrize(
    ("constraints", "matched"),
    [
        ({}, True),
        ({"resourceRules": [{**RULE, "resources": ["*"]}]}, True),
        ({"resourceRules": [{**RULE, "resources": ["deployments/*"]}]}, True),
        ({"resourceRules": [{**RULE, "resources": ["deployments/scale"]}]}, False),
        ({"resourceRules": [{**RULE, "apiGroups": [""]}]}, False),
        ({"resourceRules": [{**RULE, "apiVersions": ["*"]}]}, True),
        ({"resourceRules": [{**RULE, "operations": []}]}, False),
        ({"resourceRules": [{**RULE, "operations": ["UPDATE"]}]}, False),
        ({"resourceRules": [{**RULE, "scope": "Cluster"}]}, False),
        ({"resourceRules": [{**RULE, "scope": "Namespaced"}]}, True),
        ({"resourceRules": [{**RULE, "resourceNames": ["web"]}]}, True),
        ({"resourceRules": [{**RULE, "resourceNames": ["we"]}]}, False),
        ({**MATCH, "excludeResourceRules": [RULE]}, False),
        ({**MATCH, "objectSelector": {"matchLabels": {"app": "web"}}}, True),
        ({**MATCH, "objectSelector": {"matchLabels": {"app": "db"}}}, False),
        ({**MATCH, "namespaceSelector": {"matchLabels": {"team": "blue"}}}, True),
        ({**MATCH, "namespaceSelector": {"matchLabels": {"team": "red"}}}, False),
    ],
)
def test_match_constraints(constraints: Any, *, matched: bool) -> None:
    found = _judge({**_valid("true"), "matchConstraints": constraints})
    assert (found is not None) == matched


def test_namespace_is_selected_by_its_labels() -> None:
    raw = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
    spec = {
        **_valid("namespaceObject.metadata == namespaceObject.metadata"),
        "matchConstraints": {"namespaceSelector": {"matchLabels": {"a": "b"}}},
    }
    linked = LinkedValidation(_compiled("ValidatingAdmissionPolicy", spec, {}))
    assert linked.evaluate(_request(raw, "namespaces"), _runtime(), ()) is None
    raw["metadata"] = {"name": "n", "labels": {"a": "b"}}
    found = linked.evaluate(_request(raw, "namespaces"), _runtime(), ())
    assert found is not None
    assert found.status == "pass"


@pytest.mark.parametrize(
    ("metadata", "expression"),
    [
        # The command line gives every object a namespace.
        (
            {"name": "n", "namespace": "default"},
            "request.namespace == 'default' && !has(namespaceObject.metadata.name)",
        ),
        ({"name": "n"}, "!has(request.namespace) && request.name == 'n'"),
        ({"generateName": "n-"}, "!has(request.name)"),
    ],
)
def test_request_namespace_of_a_namespace_is_its_name(
    metadata: dict[str, Any], expression: str
) -> None:
    raw = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    rule = {**RULE, "apiGroups": [""], "resources": ["namespaces"]}
    spec = {**_valid(expression), "matchConstraints": {"resourceRules": [rule]}}
    linked = LinkedValidation(_compiled("ValidatingAdmissionPolicy", spec, {}))
    found = linked.evaluate(_request(raw, "namespaces"), _runtime(), ())
    assert found is not None
    assert (found.status, found.message) == ("pass", "")


def test_generated_name_matches_by_its_prefix() -> None:
    raw = {**DEPLOYMENT, "metadata": {"generateName": "web-"}}
    rules = [{**RULE, "resourceNames": ["we"]}]
    spec = {**_valid("true"), "matchConstraints": {"resourceRules": rules}}
    linked = LinkedValidation(_compiled("ValidatingAdmissionPolicy", spec, {}))
    assert linked.evaluate(_request(raw), _runtime(), ()) is not None


ELSEWHERE = {"matchResources": {"objectSelector": {"matchLabels": {"app": "db"}}}}


def test_last_binding_decides_and_constraints_do_not() -> None:
    spec = {**_valid("true"), "matchConstraints": {"resourceRules": []}}
    assert _judge(spec, {"a": {}, "b": {}, "c": ELSEWHERE}) == ("pass", "", "b")
    assert _judge(spec, {"c": ELSEWHERE}) is None


@pytest.mark.parametrize(
    ("ref", "expression", "status"),
    [
        ({"name": "limit"}, "object.spec.replicas <= int(params.data.max)", "fail"),
        ({"name": "limit"}, "params.data.max == '2'", "pass"),
        ({"name": "other"}, "params.data.max == '2'", "error"),
        ({"name": "other"}, "params == null", "pass"),
        ({"selector": {}}, "params.items.size() == 1", "pass"),
        ({"selector": {"matchLabels": {"no": "one"}}}, "params == null", "pass"),
    ],
)
def test_parameters(ref: Any, expression: str, status: str) -> None:
    kind = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}
    found = _judge({**kind, **_valid(expression)}, {"b": {"paramRef": ref}}, [LIMIT])
    assert found is not None
    assert found[0] == status


def _mutate(
    *mutations: Any, bindings: Any = None, params: Any = (), **spec: Any
) -> Mutated:
    given = {"matchConstraints": MATCH, "mutations": list(mutations), **spec}
    compiled = _compiled("MutatingAdmissionPolicy", given, bindings or {})
    linked = LinkedAdmissionMutation(compiled)
    return linked.apply(_request(DEPLOYMENT), _runtime(), params)


def _configuration(expression: str) -> Any:
    return {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": expression},
    }


def _patch(expression: str) -> Any:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


@pytest.mark.parametrize(
    ("mutation", "spec"),
    [
        (_configuration("Object{}"), {"replicas": 3, "args": ["a", "b"]}),
        (
            _configuration("Object{spec: Object.spec{replicas: 5, args: ['c']}}"),
            {"replicas": 5, "args": ["c"]},
        ),
        (
            _configuration("Object{spec: Object.spec{?replicas: optional.none()}}"),
            {"replicas": 3, "args": ["a", "b"]},
        ),
        (
            _configuration("Object{spec: Object.spec{list: [Object.spec.list{n: 1}]}}"),
            {"replicas": 3, "args": ["a", "b"], "list": [{"n": 1}]},
        ),
        (
            _patch("[JSONPatch{op: 'replace', path: '/spec/replicas', value: 1}]"),
            {"replicas": 1, "args": ["a", "b"]},
        ),
        (
            _patch(
                "[JSONPatch{op: 'add', path: '/spec/' + jsonpatch.escapeKey('a/b'),"
                " value: Object.spec{x: {'y': 'z'}}}]"
            ),
            {"replicas": 3, "args": ["a", "b"], "a/b": {"x": {"y": "z"}}},
        ),
        (
            _patch(
                "[JSONPatch{op: 'test', path: '/spec/replicas', value: 1},"
                " JSONPatch{op: 'remove', path: '/spec/replicas'}]"
            ),
            {"replicas": 3, "args": ["a", "b"]},
        ),
    ],
)
def test_mutations(mutation: Any, spec: Any) -> None:
    before = msgspec.json.encode(DEPLOYMENT)
    found = _mutate(mutation)
    assert (found.problems, found.patched["spec"]) == ([], spec)
    assert found.result is not None
    assert found.result.message == "mutation is successfully applied"
    assert msgspec.json.encode(DEPLOYMENT) == before


@pytest.mark.parametrize(
    ("mutation", "problem"),
    [
        (_patch("[JSONPatch{op: 'add', path: '/no/thing', value: 1}]"), "JSON Patch: "),
        (_patch("[JSONPatch{op: 'remove', path: '/no'}]"), "JSON Patch: "),
        (_configuration("Object{spec: Object.other{}}"), "type mismatch: unexpected "),
        (
            _configuration("Object{spec: Object.spec{a: {1: 'x'}}}"),
            'map key "1" is of type int, not string',
        ),
        (_configuration("{'spec': 1}"), "compilation error: must evaluate to Object"),
        (_configuration("Object{spec: object.no}"), "expression 'Object{spec: obj"),
        (
            _configuration(
                "Object{spec: Object.spec{t: timestamp('2026-01-01T00:00:00Z')}}"
            ),
            "a value",
        ),
    ],
)
def test_failed_mutation_has_no_result(mutation: Any, problem: str) -> None:
    found = _mutate(mutation)
    assert found.result is None
    assert found.patched is DEPLOYMENT
    assert [text[: len(problem)] for text in found.problems] == [problem]


def test_mutations_see_the_previous_result() -> None:
    more = _configuration(
        "Object{spec: Object.spec{replicas: object.spec.replicas + variables.one}}"
    )
    one = [{"name": "one", "expression": "1"}]
    assert _mutate(more, more, variables=one).patched["spec"]["replicas"] == 5


def test_each_binding_starts_from_the_original_object() -> None:
    more = _configuration(
        "Object{spec: Object.spec{replicas: object.spec.replicas + 1}}"
    )
    found = _mutate(more, bindings={"a": {}, "b": {}})
    assert found.result is not None
    assert found.result.properties == {"mapBinding": "b"}
    assert found.patched["spec"]["replicas"] == 4


def test_mutation_with_parameters() -> None:
    sets = _configuration("Object{spec: Object.spec{max: params.data.max}}")
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    bindings = {"b": {"paramRef": {"name": "limit"}}}
    found = _mutate(sets, bindings=bindings, params=[LIMIT], paramKind=kind)
    assert found.patched["spec"]["max"] == "2"


def test_mutation_that_does_not_match() -> None:
    condition = [{"name": "c", "expression": "object.spec.replicas > 3"}]
    found = _mutate(_configuration("Object{}"), matchConditions=condition)
    assert found.result is not None
    assert (found.result.status, found.patched) == ("skip", DEPLOYMENT)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"match": {}}, "spec.match"),
        ({"failurePolicy": "Maybe"}, "spec.failurePolicy"),
        ({"validations": [{"message": "m"}]}, "spec.validations[0].expression"),
    ],
)
def test_unknown_fields_are_rejected(spec: Any, path: str) -> None:
    raw = _document("ValidatingAdmissionPolicy", "p", spec)
    with pytest.raises(DocumentInvalid) as caught:
        decode_admission_policy(raw)
    assert [problem.path for problem in caught.value.problems] == [path]
