"""Context entries that read the cluster become variables, if both sides read alike.

A failure means: a rewritten policy reads other objects than its ClusterPolicy, or
decides otherwise if an object is missing or a call fails.
"""

from typing import Any

import pytest

from kyverno_mp.cli.fix.rewrite.inputs import reviews
from kyverno_mp.cli.fix.rewrite.policy import resources_of
from kyverno_mp.cli.fix.rewrite.proof import Pair
from kyverno_mp.cli.fix.to_cel import rewrite
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.limits import REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from tests.examples import scaled

Json = Any
COUNTED = "kyverno_mp.cli.fix.rewrite.inputs.REWRITE_INPUTS_MIN"
UID = "{{request.object.metadata.uid}}"
INPUTS = min(scaled(REWRITE_INPUTS_MIN), 400)
SERVICES = "/api/v1/namespaces/{{ request.namespace }}/services"
NAME = "{{ request.object.metadata.name }}"


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on fewer requests than the command, as in other property tests."""
    monkeypatch.setattr(COUNTED, INPUTS)
    monkeypatch.setattr(COUNTED.replace("_MIN", "_MAX"), INPUTS)


def policy(
    entry: Json, key: str, operator: str, value: Json, kind: str = "Service"
) -> Json:
    condition = {"key": key, "operator": operator, "value": value}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "validationFailureAction": "Audit",
            "rules": [
                {
                    "name": "r",
                    "match": {"any": [{"resources": {"kinds": [kind]}}]},
                    "context": [{"name": "entry", **entry}],
                    "validate": {"deny": {"conditions": {"any": [condition]}}},
                }
            ],
        },
    }


def call(path: str, query: str = "", **fields: Json) -> Json:
    return {"apiCall": {"urlPath": path, "jmesPath": query, **fields}}


def config_map(name: str, **fields: Json) -> Json:
    return {"configMap": {"name": name, **fields}}


def variables(raw: Json) -> dict[str, str]:
    document = rewrite(raw).document
    assert document is not None
    listed = document["spec"].get("variables", ())
    return {one["name"]: one["expression"] for one in listed}


NAMED = policy(call(SERVICES, "items[].metadata.name"), NAME, "AnyNotIn", "{{ entry }}")
HOSTS = policy(
    call("/apis/networking.k8s.io/v1/ingresses", "items[].spec.rules[].host"),
    "{{ request.object.spec.rules[].host }}",
    "AnyIn",
    "{{ entry }}",
    "Ingress",
)
OTHERS = policy(
    call(
        SERVICES, "items[?metadata.uid!='{{request.object.metadata.uid}}'] | length(@)"
    ),
    "{{ entry }}",
    "GreaterThan",
    1,
)
NAMESPACE = policy(
    call("/api/v1/namespaces/{{request.namespace}}", "metadata.labels.guard || ''"),
    "{{ entry }}",
    "Equals",
    "on",
)
LABELLED = policy(
    call("/api/v1/namespaces?labelSelector=tier%3Dgold", "items[] | length(@)"),
    "{{ entry }}",
    "Equals",
    0,
)
CONFIGURED = policy(
    config_map("guard", namespace="{{ request.namespace }}"),
    "{{ entry.data.mode }}",
    "Equals",
    "on",
)
SHARED = policy(config_map("guard"), "{{ entry.data.mode }}", "Equals", "on")
ALL = {
    "a name in a list": NAMED,
    "two lists": HOSTS,
    "a filter with a variable": OTHERS,
    "an object": NAMESPACE,
    "objects with a label": LABELLED,
    "a ConfigMap of the namespace": CONFIGURED,
    "a ConfigMap": SHARED,
}


@pytest.mark.parametrize(
    ("raw", "expression"),
    [
        (NAMED, "dyn(resource.List('v1', 'services', request.namespace).items)"),
        (HOSTS, "dyn(resource.List('networking.k8s.io/v1', 'ingresses', '').items)"),
        (OTHERS, "dyn(resource.List('v1', 'services', request.namespace).items)"),
        (NAMESPACE, "dyn(resource.Get('v1', 'namespaces', '', request.namespace))"),
        (
            LABELLED,
            "dyn(resource.List('v1', 'namespaces', '', {'tier': 'gold'}).items)",
        ),
        (
            CONFIGURED,
            "dyn(resource.Get('v1', 'configmaps', request.namespace, 'guard'))",
        ),
        (SHARED, "dyn(resource.Get('v1', 'configmaps', 'default', 'guard'))"),
    ],
)
def test_a_variable_reads_what_the_entry_read(raw: Json, expression: str) -> None:
    assert variables(raw)["entry"] == expression


@pytest.mark.parametrize("name", ALL)
def test_a_rewrite_that_reads_something_else_is_noticed(name: str) -> None:
    """The proof has to notice another namespace, resource, label or test."""
    raw = ALL[name]
    before = decode(raw)
    assert isinstance(before, ClusterPolicy)
    tried = list(reviews(expand(before), sorted(resources_of(before))))
    changed = rewrite(raw).document
    assert changed is not None
    assert not list(Pair(before, changed).differences(tried))
    (entry,) = (one for one in changed["spec"]["variables"] if one["name"] == "entry")
    correct = entry["expression"]
    for part, other in (
        ("'v1', 'services'", "'v1', 'configmaps'"),
        ("'v1', 'namespaces', '',", "'v1', 'configmaps', 'default',"),
        ("request.namespace", "'other'"),
        ("'ingresses', ''", "'ingresses', 'default'"),
        ("'gold'", "'silver'"),
        ("'guard'", "'other'"),
        ("'default'", "'other'"),
    ):
        if part in correct:
            entry["expression"] = correct.replace(part, other)
            assert any(Pair(before, changed).differences(tried)), entry
    entry["expression"] = correct
    (validation,) = changed["spec"]["validations"]
    validation["expression"] = f"!({validation['expression']})"
    assert any(Pair(before, changed).differences(tried))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (
            policy(call(SERVICES, default=[]), NAME, "AnyIn", "{{ entry }}"),
            "context entry entry with data or a default",
        ),
        (
            policy(call(SERVICES, method="POST"), NAME, "AnyIn", "{{ entry }}"),
            "context entry entry with data or a default",
        ),
        (
            policy(call("/apis/example.com/v1/things"), NAME, "AnyIn", "{{ entry }}"),
            "context entry entry with the path /apis/example.com/v1/things",
        ),
        (
            policy(call("/api/v1/services/x"), NAME, "AnyIn", "{{ entry }}"),
            "context entry entry with the path /api/v1/services/x",
        ),
        (
            policy(
                call("/api/v1/namespaces/{{request.object.spec.externalName}}"),
                NAME,
                "AnyIn",
                "{{ entry }}",
            ),
            "the name {{request.object.spec.externalName}} in a context entry",
        ),
        (
            policy(call(SERVICES), NAME, "AnyIn", "{{ entry }}", "Node"),
            "request.namespace of a kind without a namespace",
        ),
        (
            policy(config_map("x"), "{{ entry.binaryData.a }}", "Equals", "b"),
            "variable entry",
        ),
        (
            policy(
                {"imageRegistry": {"reference": "x"}}, "{{ entry.a }}", "Equals", "b"
            ),
            "context entry entry, which is no variable",
        ),
    ],
)
def test_reads_without_an_equivalent_are_named(raw: Json, reason: str) -> None:
    outcome = rewrite(raw)
    assert (outcome.documents, outcome.reason) == ((), f"rule r: {reason}")
