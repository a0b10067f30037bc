"""Policies in CEL that mutate, generate or delete, from documents to verdicts.

Expected: docs/behaviour/cel 5, 7, 10.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import pytest

from kyverno_mp.compiler.cel_kinds.mutating_policy import compile_mutating_policy
from kyverno_mp.compiler.cel_kinds.policies import (
    compile_deleting_policy,
    compile_generating_policy,
)
from kyverno_mp.errors import ExpressionFailed, Preempted
from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_PURE
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.policy.cel_kinds.policies import decode_cel_policy
from kyverno_mp.policy.cel_kinds.validating_policy import decode_validating_policy
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program.cel_policies.delete import LinkedDeletingPolicy
from kyverno_mp.program.cel_policies.generate import LinkedGeneratingPolicy
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy, Mutated
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.values.typed.custom import types_of_definitions
from tests.unit.values.test_custom_types import API, KIND, definition

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "image": "nginx"}]},
}
MATCH = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
        }
    ]
}
PLURALS = {
    "Widget": "widgets",
    "Pod": "pods",
    "Deployment": "deployments",
    "CronJob": "cronjobs",
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Generated:
    """A fake ``generator`` port."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def generate(self, namespace: str, objects: Any, _deadline_ns: int) -> None:
        self.calls.append((namespace, objects))


def document(kind: str, spec: Any, namespace: str = "", match: Any = MATCH) -> Any:
    metadata = {"name": "p", **({"namespace": namespace} if namespace else {})}
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": f"{'Namespaced' if namespace else ''}{kind}",
        "metadata": metadata,
        "spec": {**({"matchConstraints": match} if match else {}), **spec},
    }
    return decode_cel_policy(raw)


def exception(kind: str, **spec: Any) -> Any:
    return decode_validating_policy(
        {
            "apiVersion": "policies.kyverno.io/v1",
            "kind": "PolicyException",
            "metadata": {"name": "e", "namespace": "n"},
            "spec": {"policyRefs": [{"name": "p", "kind": kind}], **spec},
        }
    )


def facts(resource: Any = POD, generated: Generated | None = None) -> Facts:
    group, _, version = resource["apiVersion"].rpartition("/")
    plural = PLURALS[resource["kind"]]
    place = {"group": group, "version": version, "resource": plural}
    request = Request(
        group=group,
        version=version,
        kind=resource["kind"],
        name=resource["metadata"]["name"],
        namespace=resource["metadata"].get("namespace", ""),
        object=resource,
        review_request={"resource": place},
    )
    runtime = Runtime(now=lambda: NOW, monotonic_ns=lambda: 0)
    return Facts(request, runtime, CelPorts(generator=generated))


def apply_mutations(*expressions: str) -> dict[str, Any]:
    """Return a spec with apply configurations."""
    return {
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": e}}
            for e in expressions
        ]
    }


def json_patches(*expressions: str) -> dict[str, Any]:
    """Return a spec with JSON patches."""
    return {
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": e}}
            for e in expressions
        ]
    }


def mutated(
    spec: Any, resource: Any = POD, exceptions: Any = (), match: Any = MATCH
) -> list[Mutated]:
    ir = compile_mutating_policy(
        document("MutatingPolicy", spec, match=match), exceptions
    )
    given = facts(resource)
    return list(LinkedMutatingPolicy(ir).evaluate(given, Shared(given.request)))


def first(spec: Any, **more: Any) -> Mutated:
    return mutated(spec, **more)[0]


def verdict(answer: Mutated) -> tuple[str, str, str]:
    assert answer.result is not None
    return answer.result.rule, answer.result.status, answer.result.message


LABEL = "Object{metadata: Object.metadata{labels: {'team': 'a'}}}"


def test_apply_configuration() -> None:
    answer = first(apply_mutations(LABEL))
    assert verdict(answer) == ("", "pass", "success")
    assert answer.patched is not None
    assert answer.patched["metadata"]["labels"] == {"app": "web", "team": "a"}
    assert POD["metadata"]["labels"] == {"app": "web"}


def test_each_mutation_sees_the_previous_result() -> None:
    seen = "{'seen': object.metadata.labels.team}"
    read = f"Object{{metadata: Object.metadata{{labels: {seen}}}}}"
    answer = first(apply_mutations(LABEL, read))
    assert answer.patched is not None
    assert answer.patched["metadata"]["labels"]["seen"] == "a"


def test_variables_and_the_request_keep_their_values() -> None:
    """docs/behaviour/cel 14.17: a variable is not evaluated twice."""
    spec = {
        "variables": [
            {"name": "n", "expression": "string(size(object.metadata.labels))"}
        ],
        **apply_mutations(
            "Object{metadata: Object.metadata{labels: {'team': variables.n}}}",
            "Object{metadata: Object.metadata{labels: {"
            "'n': variables.n, 'r': string(size(request.object.metadata.labels))}}}",
        ),
    }
    answer = first(spec)
    assert answer.patched is not None
    found = answer.patched["metadata"]["labels"]
    assert (found["team"], found["n"], found["r"]) == ("1", "1", "1")


def test_json_patch() -> None:
    spec = json_patches(
        "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'),"
        " value: 'x'}]"
    )
    answer = first(spec)
    assert answer.patched is not None
    assert answer.patched["metadata"]["labels"]["a/b"] == "x"


def test_failed_test_operation_is_a_silent_pass() -> None:
    spec = json_patches(
        "[JSONPatch{op: 'test', path: '/metadata/name', value: 'other'},"
        " JSONPatch{op: 'remove', path: '/spec'}]"
    )
    answer = first(spec)
    assert verdict(answer) == ("", "pass", "success")
    assert answer.patched == POD


def test_replace_sets_an_absent_field() -> None:
    """The API server's version of the library and the real program do the same."""
    spec = json_patches("[JSONPatch{op: 'replace', path: '/spec/replicas', value: 7}]")
    patched = first(spec).patched
    assert patched is not None
    assert patched["spec"]["replicas"] == 7


def test_absent_field_cannot_be_removed() -> None:
    """The real program's text."""
    spec = json_patches("[JSONPatch{op: 'remove', path: '/spec/volumes'}]")
    assert verdict(first(spec))[2] == (
        "failed to evaluate policy: JSON Patch: error in remove for path:"
        " '/spec/volumes': Unable to remove nonexistent key: volumes: missing value"
    )


def test_unknown_operation_fails_when_reached() -> None:
    bad = "JSONPatch{op: 'bad', path: '/a', value: 1}"
    wanted = "failed to evaluate policy: JSON Patch: Unexpected kind: bad"
    assert verdict(first(json_patches(f"[{bad}]")))[2] == wanted
    test = "JSONPatch{op: 'test', path: '/kind', value: 'x'}"
    assert verdict(first(json_patches(f"[{test}, {bad}]")))[1] == "pass"


def test_integers_beyond_a_double_become_strings() -> None:
    spec = json_patches(
        "[JSONPatch{op: 'add', path: '/spec/n', value: 9007199254740993},"
        " JSONPatch{op: 'add', path: '/spec/m', value: [7]}]"
    )
    patched = first(spec).patched
    assert patched is not None
    assert (patched["spec"]["n"], patched["spec"]["m"]) == ("9007199254740993", [7])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            apply_mutations("Object{spec: Object.spec{bogus: 1}}"),
            (
                "error applying patch: failed to convert patch object to typed object:"
                " .spec.bogus: field not declared in schema"
            ),
        ),
        (
            apply_mutations("Object{spec: Object.wrong{a: 1}}"),
            (
                'type mismatch: unexpected type name "Object.wrong", expected'
                ' "Object.spec", which matches field name path from root Object type'
            ),
        ),
        (
            {
                "matchConditions": [{"name": "c", "expression": "object.none == 1"}],
                "failurePolicy": "Ignore",
                "mutations": [],
            },
            "no such key: none",
        ),
    ],
)
def test_errors(spec: Any, message: str) -> None:
    answer = first(spec)
    wanted = f"failed to evaluate policy: {message}"
    assert verdict(answer) == ("evaluation", "error", wanted)
    assert answer.patched is None


def test_kind_without_types() -> None:
    resource = {**POD, "apiVersion": "example.com/v1", "kind": "Pod"}
    answer = first(apply_mutations(LABEL), resource=resource, match=None)
    assert verdict(answer)[2] == (
        "failed to evaluate policy: error applying patch: type converter must not be"
        " nil"
    )


def test_conditions_can_use_variables() -> None:
    spec = {
        "variables": [{"name": "yes", "expression": "false"}],
        "matchConditions": [{"name": "c", "expression": "variables.yes"}],
        **apply_mutations(LABEL),
    }
    answer = first(spec)
    assert verdict(answer) == ("", "skip", "skip")
    assert answer.patched is None


def test_autogen_for_controllers() -> None:
    """The object to mutate is nested; docs/behaviour/cel 7."""
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "shop"},
        "spec": {"template": pod},
    }
    spec = apply_mutations("Object{spec: Object.spec{hostPID: true}}")
    answers = {one.copy: one for one in mutated(spec, deployment)}
    assert [name for name, one in answers.items() if one.result] == ["defaults"]
    patched = answers["defaults"].patched
    assert patched is not None
    assert patched["spec"]["template"]["spec"]["hostPID"] is True


POD_LABELS = "Object.metadata{labels: Object.metadata.labels{b: 'object.spec }'}}"


@pytest.mark.parametrize(
    ("expression", "spec", "labels"),
    [
        ("Object {\n spec : Object . spec {\n hostPID: true } }", True, None),
        (f"Object{{metadata: {POD_LABELS}}}", False, "object.spec }"),
        (
            (
                f"Object{{metadata: {POD_LABELS}, spec: Object.spec{{hostPID: true}}}}"
                " // object.spec {"
            ),
            True,
            "object.spec }",
        ),
        (
            (
                "has(object.spec.nothing) ? Object{}"
                " : Object{spec: Object.spec{hostPID: has(object.spec.containers)}}"
            ),
            True,
            None,
        ),
        (
            (
                "cel.bind(x, object.?metadata.?labels[?'a'].orValue('') == 'b',"
                " Object{spec: Object.spec{hostPID: x}})"
            ),
            True,
            None,
        ),
        (
            (
                "(Object{spec: Object.spec{hostPID: object['spec'].containers != []"
                " && request.object.metadata.labels.a == 'b' && variables.v}})"
            ),
            True,
            None,
        ),
    ],
)
def test_copies_come_from_the_parsed_expression(
    expression: str,
    spec: bool,  # noqa: FBT001 - a column
    labels: str | None,
) -> None:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "shop"},
        "spec": {"template": pod},
    }
    given = {
        **apply_mutations(expression),
        "matchConditions": [
            {"name": "c", "expression": "has( object . spec.containers)"}
        ],
        "variables": [
            {"name": "v", "expression": "object.spec.containers.size() == 1"}
        ],
    }
    (answer,) = [one for one in mutated(given, deployment) if one.result]
    assert verdict(answer)[1] == "pass"
    assert answer.patched is not None
    template = answer.patched["spec"]["template"]
    assert template["spec"].get("hostPID", False) is spec
    assert template["metadata"]["labels"].get("b") == labels
    assert "labels" not in answer.patched["metadata"]


_CONTAINERS = "string(object.spec.containers.size())"


@pytest.mark.parametrize(
    ("pointers", "value", "labels", "host"),
    [
        ('path: "/spec/hostPID"', "true", {"a": "b"}, True),
        ("path: r'/metadata/labels/' + jsonpatch.escapeKey('x/y')", "'v'", None, None),
        (
            (
                "path: has(object.spec.nothing) ? '/metadata/name' :"
                " ('/metadata/labels/a')"
            ),
            "object.metadata.labels.a + 'c'",
            {"a": "bc"},
            None,
        ),
        (
            'from: "/metadata/labels/a", path: "/metadata/labels/z"',
            "''",
            {"z": "b"},
            None,
        ),
    ],
)
def test_pointers_of_json_patches_lead_into_the_template(
    pointers: str, value: str, labels: Any, host: Any
) -> None:
    """Also those of audit annotations, which the copies have."""
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "shop", "labels": {"own": "x"}},
        "spec": {"template": pod},
    }
    op = "move" if "from:" in pointers else "add"
    patch = f'[JSONPatch{{op: "{op}", {pointers}, value: {value}}}]'
    given = {
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        "auditAnnotations": [{"key": "k", "valueExpression": _CONTAINERS}],
    }
    (answer,) = [one for one in mutated(given, deployment) if one.result]
    assert verdict(answer)[1] == "pass", verdict(answer)
    assert answer.patched is not None
    assert answer.result is not None
    template = answer.patched["spec"]["template"]
    wanted = {"a": "b", "x/y": "v"} if labels is None else labels
    assert template["metadata"]["labels"] == wanted
    assert template["spec"].get("hostPID") is host
    assert answer.patched["metadata"]["labels"] == {"own": "x"}
    assert answer.result.properties["k"] == str(len(POD["spec"]["containers"]))


def test_a_policy_without_constraints_matches_everything() -> None:
    assert verdict(first(apply_mutations(LABEL), match=None))[1] == "pass"


@pytest.mark.parametrize(
    ("more", "status", "labels"),
    [
        ({}, "skip", None),
        ({"reportResult": "pass"}, "pass", None),
        ({"images": ["i"]}, "pass", {"app": "web", "n": "1"}),
        (
            {"matchConditions": [{"name": "m", "expression": "false"}]},
            "pass",
            {"app": "web", "n": "0"},
        ),
    ],
)
def test_exceptions(more: Any, status: str, labels: Any) -> None:
    text = "string(size(exceptions.allowedImages))"
    spec = apply_mutations(
        f"Object{{metadata: Object.metadata{{labels: {{'n': {text}}}}}}}"
    )
    answer = first(spec, exceptions=[exception("MutatingPolicy", **more)])
    assert verdict(answer)[1] == status
    found = answer.patched["metadata"]["labels"] if answer.patched else None
    assert found == labels


def test_exception_for_another_policy() -> None:
    other = exception("ValidatingPolicy")
    assert verdict(first(apply_mutations(LABEL), exceptions=[other]))[0] == ""


def test_existing_objects() -> None:
    """``object`` is the target, ``request.object`` the trigger."""
    label = "{'t': request.object.metadata.name, 'o': object.metadata.name}"
    spec = {
        "evaluation": {"mutateExisting": {"enabled": True}},
        **apply_mutations(f"Object{{metadata: Object.metadata{{labels: {label}}}}}"),
    }
    ir = compile_mutating_policy(document("MutatingPolicy", spec))
    assert ir.mutates_existing
    trigger = facts()
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "target"}}
    target = trigger._replace(request=replace(trigger.request, object=config))
    shared = Shared(trigger.request)
    (answer, *_) = LinkedMutatingPolicy(ir).mutate_target(target, shared)
    assert answer.patched is not None
    assert answer.patched["metadata"]["labels"] == {"t": "web", "o": "target"}


def on_target(spec: Any, name: str, *, in_background: bool) -> RuleResult:
    """Return the verdict on a ConfigMap of this name, triggered by the Pod."""
    existing = {"evaluation": {"mutateExisting": {"enabled": True}}}
    ir = compile_mutating_policy(document("MutatingPolicy", {**existing, **spec}))
    trigger = facts()
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    target = trigger._replace(request=replace(trigger.request, object=config))
    linked, shared = LinkedMutatingPolicy(ir), Shared(trigger.request)
    answer = (
        linked.mutate_existing(target, shared, 0)
        if in_background
        else next(linked.mutate_target(target, shared))
    )
    assert answer.result is not None
    return answer.result


@pytest.mark.parametrize("in_background", [True, False])
@pytest.mark.parametrize(
    ("name", "status"), [("wanted", "pass"), ("other", "skip"), ("bad", "error")]
)
def test_target_conditions(name: str, status: str, *, in_background: bool) -> None:
    """1.19: they can read the variables and the trigger, and apply to targets only."""
    text = "variables.name == 'bad' ? object.x == 1 : variables.name == 'wanted'"
    spec = {
        "matchConditions": [{"name": "trigger", "expression": "object.kind == 'Pod'"}],
        "targetMatchConditions": [
            {"name": "t", "expression": "request.object.metadata.name == 'web'"},
            {"name": "n", "expression": text},
        ],
        "variables": [{"name": "name", "expression": "object.metadata.name"}],
        **apply_mutations(LABEL),
    }
    found = on_target(spec, name, in_background=in_background)
    assert found.status == status
    if status == "error":
        assert found.message == "failed to evaluate policy: no such key: x"


def test_target_conditions_do_not_apply_to_reviews() -> None:
    """Otherwise conditions about targets would slow down or skip a review."""
    text = "resource.get('v1', 'configmaps', 'a', 'b').kind == 'x'"
    spec = {
        "targetMatchConditions": [{"name": "t", "expression": text}],
        **apply_mutations(LABEL),
    }
    ir = compile_mutating_policy(document("MutatingPolicy", spec))
    assert ir.effects == EFFECT_PURE
    assert verdict(first(spec)) == ("", "pass", "success")


ANNOTATIONS: list[tuple[str, str, Any]] = [
    ("'team ' + object.metadata.labels.team", "success", {"k": "team a"}),
    ("''", "success", {}),
    (
        "object.x",
        (
            'failed to evaluate policy: failed to evaluate auditAnnotation "k": no such'
            " key: x"
        ),
        {},
    ),
    (
        "null",
        (
            'failed to evaluate policy: failed to convert auditAnnotation "k"'
            " expression: type conversion error from 'null_type' to 'string'"
        ),
        {},
    ),
]


@pytest.mark.parametrize(("text", "message", "properties"), ANNOTATIONS)
def test_annotations_see_the_mutated_object(
    text: str, message: str, properties: Any
) -> None:
    """1.19: annotations are properties of the result."""
    text = f"dyn({text})" if text == "object.x" else text
    wanted = f"string({text})" if text.startswith("dyn") else text
    spec = {
        "auditAnnotations": [{"key": "k", "valueExpression": wanted}],
        **apply_mutations(LABEL),
    }
    found = first(spec).result
    assert found is not None
    assert (found.message, found.properties) == (message, properties)
    assert found.status == ("pass" if message == "success" else "error")


class Types:
    """A fake port of types with one kind."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def types(self, api_version: str, kind: str, _deadline_ns: int) -> Any:
        self.asked.append((api_version, kind))
        return types_of_definitions([definition()])


def custom(types: Types | None, pace: Any = None) -> Mutated:
    """Return the verdict on an object of a custom kind."""
    text = (
        "Object{spec: Object.spec{entries: [Object.spec.entries{name: 'a', port: 2}]}}"
    )
    match = {"resourceRules": [{**MATCH["resourceRules"][0], "resources": ["*"]}]}
    match["resourceRules"][0] |= {"apiGroups": ["*"], "apiVersions": ["*"]}
    ir = compile_mutating_policy(
        document("MutatingPolicy", apply_mutations(text), match=match)
    )
    entries = [{"name": "a", "port": 1}, {"name": "b"}]
    resource = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": "w"},
        "spec": {"entries": entries},
    }
    given = facts(resource)
    runtime = Runtime(now=lambda: NOW, monotonic_ns=lambda: 0, pace=pace)
    ports = CelPorts(types=types)
    given = given._replace(runtime=runtime, ports=ports)
    return next(LinkedMutatingPolicy(ir).evaluate(given, Shared(given.request)))


def test_custom_kind_merges_by_its_types() -> None:
    """Otherwise elements of a list would be lost, or the policy would fail."""
    types = Types()
    answer = custom(types)
    assert verdict(answer) == ("", "pass", "success")
    assert answer.patched is not None
    entries = answer.patched["spec"]["entries"]
    assert entries == [{"name": "a", "port": 2}, {"name": "b"}]
    assert types.asked == [(API, KIND)]
    assert "type converter must not be nil" in verdict(custom(None))[2]


class _Never:
    """The pace of the event loop, which must not wait."""

    slice_ends_ns = 10**18

    def next_slice(self, now_ns: int) -> None:
        if now_ns >= self.slice_ends_ns:
            self.make_room()

    def make_room(self) -> NoReturn:
        raise Preempted("review.preempted", "not here")


def test_event_loop_does_not_wait_for_types() -> None:
    """Otherwise all other reviews would wait for the API server."""
    types = Types()
    with pytest.raises(Preempted):
        custom(types, _Never())
    assert types.asked == []


def test_types_of_built_in_kinds_are_known() -> None:
    """Otherwise each review of a Pod would query the API server."""
    types = Types()
    given = facts()._replace(ports=CelPorts(types=types))
    ir = compile_mutating_policy(document("MutatingPolicy", apply_mutations(LABEL)))
    assert next(LinkedMutatingPolicy(ir).evaluate(given, Shared(given.request))).patched
    assert types.asked == []


ATOMIC = "Object{spec: Object.spec{nodeSelector: Object.spec.nodeSelector{disk: 'a'}}}"


def test_server_side_apply_replaces_atomic_values() -> None:
    """1.19: without useServerSideApply, the API server's rejection remains."""
    resource = {**POD, "spec": {**POD["spec"], "nodeSelector": {"zone": "b"}}}
    spec = apply_mutations(ATOMIC)
    assert verdict(first(spec, resource=resource))[2] == (
        "failed to evaluate policy: error applying patch: invalid ApplyConfiguration:"
        " may not mutate atomic arrays, maps or structs: .spec.nodeSelector"
    )
    spec["evaluation"] = {"useServerSideApply": True}
    changed = first(spec, resource=resource).patched
    assert changed is not None
    assert changed["spec"] == {**POD["spec"], "nodeSelector": {"disk": "a"}}


def test_target_expression() -> None:
    text = "{'metadata': dyn({'name': object.metadata.name + '-x'})}"
    spec = {
        "targetMatchConstraints": {"expression": "json.unmarshal('{}')"},
        "mutations": [],
    }
    ir = compile_mutating_policy(document("MutatingPolicy", spec))
    with pytest.raises(ExpressionFailed, match="output type must be a map"):
        LinkedMutatingPolicy(ir).targets(facts())
    spec["targetMatchConstraints"] = {"expression": f"resource.post('v1', 'x', {text})"}
    ir = compile_mutating_policy(document("MutatingPolicy", spec))
    with pytest.raises(ExpressionFailed, match="no cluster is available"):
        LinkedMutatingPolicy(ir).targets(facts())


@pytest.mark.parametrize(
    ("kind", "spec", "text"),
    [
        (
            "MutatingPolicy",
            json_patches("[1]"),
            (
                'spec.mutations[0].jsonPatch.expression: Invalid value: "[1]": output'
                " is expected to be of type list"
            ),
        ),
        (
            "MutatingPolicy",
            apply_mutations("{'a': 1}"),
            (
                "spec.mutations[0].applyConfiguration.expression: Invalid value:"
                " \"{'a': 1}\": output is expected to be of type Object"
            ),
        ),
        (
            "MutatingPolicy",
            {"targetMatchConditions": [{"name": "t", "expression": "1"}]},
            (
                'spec.targetMatchConditions[0].expression: Invalid value: "1": output'
                " is expected to be of type bool"
            ),
        ),
        (
            "MutatingPolicy",
            {"auditAnnotations": [{"key": "k", "valueExpression": "1"}]},
            (
                'spec.auditAnnotations[0].valueExpression: Invalid value: "1": output'
                " is expected to be either of type string or null_type"
            ),
        ),
        (
            "GeneratingPolicy",
            {"generate": [{"expression": "'a'"}]},
            (
                "spec.generate[0].expression: Invalid value: \"'a'\": output is"
                " expected to be of type bool"
            ),
        ),
        (
            "DeletingPolicy",
            {
                "schedule": "* * * * *",
                "conditions": [{"name": "c", "expression": "1"}],
            },
            (
                'spec.conditions[0].expression: Invalid value: "1": output is expected'
                " to be of type bool"
            ),
        ),
    ],
)
def test_expression_types(kind: str, spec: Any, text: str) -> None:
    compiled = {
        "MutatingPolicy": compile_mutating_policy,
        "GeneratingPolicy": compile_generating_policy,
        "DeletingPolicy": compile_deleting_policy,
    }[kind]
    with pytest.raises(DocumentInvalid) as caught:
        compiled(document(kind, spec))  # type: ignore[operator]  # of that kind
    assert [one.upstream for one in caught.value.problems] == [text]


@pytest.mark.parametrize("kind", ["GeneratingPolicy", "DeletingPolicy"])
def test_some_kinds_have_the_user_library(kind: str) -> None:
    spec: dict[str, Any] = {
        "variables": [{"name": "u", "expression": "parseServiceAccount('x')"}]
    }
    if kind == "GeneratingPolicy":
        with pytest.raises(DocumentInvalid, match="undeclared reference"):
            compile_generating_policy(
                document(kind, {**spec, "generate": [{"expression": "true"}]})
            )
    else:
        with pytest.raises(DocumentInvalid, match="undeclared reference"):
            compile_deleting_policy(document(kind, {**spec, "schedule": "* * * * *"}))


def test_absent_objects_are_null() -> None:
    text = "string(oldObject == null) + string(request.oldObject == null)"
    spec = apply_mutations(
        f"Object{{metadata: Object.metadata{{labels: {{'x': {text}}}}}}}"
    )
    patched = mutated(spec)[0].patched
    assert patched is not None
    assert patched["metadata"]["labels"]["x"] == "truetrue"


ITEM = "{'apiVersion': dyn('v1'), 'kind': dyn('ConfigMap'), 'n': dyn(1)}"


def generated(
    spec: Any,
    *,
    namespace: str = "",
    exceptions: Any = (),
    port: Generated | None = None,
) -> tuple[RuleResult | None, Generated]:
    ir = compile_generating_policy(
        document("GeneratingPolicy", spec, namespace), exceptions
    )
    port = port or Generated()
    given = facts(generated=port)
    return LinkedGeneratingPolicy(ir).evaluate(given, Shared(given.request)), port


def generates(text: str) -> dict[str, Any]:
    return {"generate": [{"expression": text}]}


def test_generation() -> None:
    for function in ("apply", "Apply"):
        found, port = generated(generates(f"generator.{function}('ns', [{ITEM}])"))
        assert found is not None
        assert (found.rule, found.status) == ("p", "pass")
        assert found.message == "policy evaluated successfully"
        item = {"apiVersion": "v1", "kind": "ConfigMap", "n": 1}
        assert port.calls == [("ns", [item])]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("9007199254740993", "9007199254740993"),
        ("9007199254740992", "9007199254740992"),
        ("9007199254740991", 9007199254740991),
        ("-9007199254740991", -9007199254740991),
        ("-9007199254740992", "-9007199254740992"),
        ("1u", 1),
        ("18446744073709551615u", "18446744073709551615"),
        ("1.5", 1.5),
        ("0.0 / 0.0", "NaN"),
        ("1.0 / 0.0", "Infinity"),
        ("-1.0 / 0.0", "-Infinity"),
        ("duration('1h')", "3600s"),
        ("duration('1.5s')", "1.5s"),
        ("timestamp('2024-01-01T00:00:00.123Z')", "2024-01-01T00:00:00.123Z"),
        ("b'abc'", "YWJj"),
        ("null", None),
    ],
)
def test_generated_values_have_the_form_of_protobuf(text: str, wanted: Any) -> None:
    """The real program writes these values, at any depth."""
    item = (
        "{'kind': dyn('ConfigMap'), 'v': dyn(%s), 'l': dyn([%s]), 'm': dyn({'k': %s})}"
    )
    spec = generates(f"generator.apply('ns', [{item.replace('%s', text)}])")
    _, port = generated(spec)
    found = {"kind": "ConfigMap", "v": wanted, "l": [wanted], "m": {"k": wanted}}
    assert port.calls == [("ns", [found])]


def test_unmet_conditions_are_a_pass_without_objects() -> None:
    spec = {
        "matchConditions": [{"name": "c", "expression": "false"}],
        **generates(f"generator.apply('ns', [{ITEM}])"),
    }
    found, port = generated(spec)
    assert found is not None
    assert (found.status, port.calls) == ("pass", [])


def test_namespaced_policy_generates_only_in_its_namespace() -> None:

    def into(target: str) -> dict[str, Any]:
        return generates(f"generator.apply('{target}', [{ITEM}])")

    found, port = generated(into("shop"), namespace="shop")
    assert found is not None
    assert (found.status, len(port.calls)) == ("pass", 1)
    found, port = generated(into("other"), namespace="shop")
    assert found is not None
    assert (found.status, port.calls) == ("error", [])
    assert 'policy in "shop" cannot generate into "other"' in found.message


def test_exception_for_generation() -> None:
    spec = generates(f"generator.apply('ns', [{ITEM}])")
    found, port = generated(spec, exceptions=[exception("GeneratingPolicy")])
    assert found is not None
    assert (found.rule, found.status, port.calls) == ("exception", "skip", [])


def test_effects() -> None:
    reads = generates("object.metadata.name == 'a'")
    writes = generates(f"generator.apply('ns', [{ITEM}])")
    effects = [
        compile_generating_policy(document("GeneratingPolicy", spec)).effects
        for spec in (reads, writes)
    ]
    assert effects == [EFFECT_PURE, EFFECT_CLUSTER]


def selects(spec: Any, resource: Any = POD, exceptions: Any = (), **more: Any) -> bool:
    raw = {"schedule": "* * * * *", **spec}
    ir = compile_deleting_policy(document("DeletingPolicy", raw, **more), exceptions)
    return LinkedDeletingPolicy(ir).selects(facts(resource))


def conditions(*texts: str) -> dict[str, Any]:
    return {
        "conditions": [
            {"name": f"c{index}", "expression": text}
            for index, text in enumerate(texts)
        ]
    }


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ((), True),
        (("object.metadata.name == 'web'",), True),
        (("object.metadata.name == 'web'", "false"), False),
        (("object.none == 1", "false"), False),
    ],
)
def test_deleted_objects(texts: Any, wanted: bool) -> None:  # noqa: FBT001 - a case
    assert selects(conditions(*texts)) is wanted


def test_operations_are_ignored() -> None:
    rule = {**MATCH["resourceRules"][0], "operations": ["DELETE"]}
    assert selects(conditions(), match={"resourceRules": [rule]})


def test_deleting_policy_without_constraints_deletes_nothing() -> None:
    assert not selects(conditions(), match=None)


def test_error_deletes_nothing() -> None:
    with pytest.raises(ExpressionFailed, match="no such key: none"):
        selects(conditions("object.none == 1", "true"))


@pytest.mark.parametrize("name", ["oldObject", "request", "exceptions"])
@pytest.mark.parametrize(
    "text",
    [
        "{} != null",
        "dyn({}) != 1",
        "!({} in [{}])",
        "type({}) != int",
        "[{}].size() == 1",
        "{{'a': {}}}.size() == 1",
        "object != {}",
        "{0} == {0}",
        "optional.of({}).hasValue()",
        "(true ? dyn({}) : 1) != 1",
        "({} == null || true) && {} != null",
        "cel.bind(x, {}, dyn(x) != 1)",
        "variables.v",
    ],
)
def test_variable_without_a_value_deletes_nothing(name: str, text: str) -> None:
    """As in the real program: every use of the variable fails (behaviour/cel 5)."""
    variables = [{"name": "v", "expression": f"{name} != null"}]
    spec = {
        **conditions(text.replace("{}", "{0}").format(name)),
        "variables": variables,
    }
    wanted = f"^no such attribute\\(s\\): {name}$"
    with pytest.raises(ExpressionFailed, match=wanted):
        selects(spec)


def test_variable_without_a_value_may_be_unused() -> None:
    """As in the real program."""
    assert selects(
        conditions("true || oldObject == null", "cel.bind(x, request, true)")
    )
    assert selects(conditions("[1].all(oldObject, oldObject == 1)"))


def test_exception_to_a_deleting_policy_reads_no_variable_without_a_value() -> None:
    own = exception(
        "DeletingPolicy",
        matchConditions=[{"name": "c", "expression": "request == null"}],
    )
    with pytest.raises(ExpressionFailed, match="no such attribute"):
        selects(conditions(), exceptions=[own])


def test_any_exception_keeps_an_object() -> None:
    kept = exception("DeletingPolicy", images=["i"])
    assert not selects(conditions(), exceptions=[kept])
