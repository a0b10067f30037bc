"""Objects of generate rules: data, one clone, many clones, one for each element."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.generate.generation import (
    evaluate_generations,
    generate,
    link_generations,
)
from kyverno_mp.program.ports import ClusterData, ObjectQuery
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.wildcard import matches

CLOCK = Clock(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic_ns=lambda: 0)
TRIGGER = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "shop", "uid": "u-1", "labels": {"team": "a"}},
}
SECRET: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {
        "name": "regcred",
        "namespace": "base",
        "uid": "u-2",
        "resourceVersion": "7",
        "labels": {"sync": "yes"},
        "ownerReferences": [{"name": "x"}],
    },
    "data": {"a": "Yg=="},
}


class Cluster:
    def __init__(self, *objects: dict[str, Any]) -> None:
        self.given = objects

    def objects(self, asked: ObjectQuery, _deadline_ns: int) -> Sequence[Any]:
        return [
            raw
            for raw in self.given
            if matches(asked.kind, raw["kind"])
            and matches(asked.name or "*", raw["metadata"]["name"])
            and matches(asked.namespace or "*", raw["metadata"]["namespace"])
        ]


def rule(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": ["Namespace"]}}]}
    return {"name": "r", "match": match, "generate": body, **fields}


def run(
    *rules: dict[str, Any],
    objects: Sequence[dict[str, Any]] = (),
    policy: str = "ClusterPolicy",
    **request: Any,
) -> tuple[PolicyResponse, str]:
    metadata = {"name": "p"}
    if policy == "Policy":
        metadata["namespace"] = "shop"
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": policy,
            "metadata": metadata,
            "spec": {"rules": list(rules)},
        }
    )
    assert isinstance(document, ClusterPolicy | Policy)
    compiled = compile_policy(document)
    linked = link_generations(compiled)
    asked = Request(**{"kind": "Namespace", "object": TRIGGER, **request})
    cluster_data = ClusterData(objects=Cluster(*objects))
    response = evaluate_generations(
        compiled.policy, linked, Engine(cluster_data, CLOCK).open(asked)
    )
    error = generate(
        linked, response, Engine(cluster_data, CLOCK).open(asked), lambda _made: True
    )
    return response, error


def target(**fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "name": "copy",
        "namespace": "{{ request.object.metadata.name }}",
        **fields,
    }


LABELS = {
    "app.kubernetes.io/managed-by": "kyverno",
    "generate.kyverno.io/policy-name": "p",
    "generate.kyverno.io/policy-namespace": "",
    "generate.kyverno.io/rule-name": "r",
    "generate.kyverno.io/trigger-group": "",
    "generate.kyverno.io/trigger-kind": "Namespace",
    "generate.kyverno.io/trigger-namespace": "",
    "generate.kyverno.io/trigger-uid": "u-1",
    "generate.kyverno.io/trigger-version": "v1",
}
"""docs/behaviour/controllers 5.3."""


def made(response: PolicyResponse) -> list[dict[str, Any]]:
    return [each for found in response.results for each in found.generated]


def test_data_is_named_and_labelled() -> None:
    data = {
        "metadata": {"labels": {"own": "x"}},
        "stringData": {"team": "{{ request.object.metadata.labels.team }}"},
    }
    response, error = run(rule(target(data=data)))
    assert not error
    assert [found.status for found in response.results] == ["pass"]
    assert made(response) == [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "copy",
                "namespace": "shop",
                "labels": {"own": "x", **LABELS},
            },
            "stringData": {"team": "a"},
        }
    ]


def test_non_string_labels_are_dropped() -> None:
    data = {"metadata": {"labels": {"own": "x", "flag": True}}}
    response, _ = run(rule(target(data=data)))
    assert made(response)[0]["metadata"]["labels"] == LABELS


def test_clone_drops_the_metadata_of_its_source() -> None:
    clone = {"name": "regcred", "namespace": "base"}
    response, error = run(rule(target(clone=clone)), objects=[SECRET])
    assert not error
    (copy,) = made(response)
    assert copy["data"] == SECRET["data"]
    assert copy["metadata"] == {
        "name": "copy",
        "namespace": "shop",
        "labels": {
            "sync": "yes",
            "generate.kyverno.io/clone-source": "",
            "generate.kyverno.io/source-group": "",
            "generate.kyverno.io/source-version": "v1",
            "generate.kyverno.io/source-kind": "Secret",
            "generate.kyverno.io/source-namespace": "base",
            "generate.kyverno.io/source-uid": "u-2",
            **LABELS,
        },
    }


TRACKING = {
    "app.kubernetes.io/instance": "shop-app",
    "applyset.kubernetes.io/part-of": "applyset-x",
    "argocd.argoproj.io/tracking-id": "shop-app:/Secret:base/regcred",
    "config.k8s.io/owning-inventory": "x",
    "helm.sh/chart": "shop-1.0.0",
    "helm.toolkit.fluxcd.io/name": "shop",
    "kapp.k14s.io/app": "1",
    "kubectl.kubernetes.io/last-applied-configuration": "{}",
    "kustomize.toolkit.fluxcd.io/name": "shop",
    "meta.helm.sh/release-name": "shop",
    "objectset.rio.cattle.io/hash": "x",
}
"""What tools that manage objects write into them."""


@pytest.mark.parametrize("body", ["clone", "cloneList"])
def test_tool_of_the_source_does_not_claim_its_clones(body: str) -> None:
    """Otherwise, the tool would delete each clone, which its manifests do not have."""
    metadata = {
        **SECRET["metadata"],
        "labels": {"sync": "yes", **TRACKING},
        "annotations": {"own": "x", **TRACKING},
    }
    source = {**SECRET, "metadata": metadata}
    bodies: dict[str, Any] = {
        "clone": target(clone={"name": "regcred", "namespace": "base"}),
        "cloneList": {
            "namespace": "shop",
            "cloneList": {"kinds": ["v1/Secret"], "namespace": "base"},
        },
    }
    (copy,) = made(run(rule(bodies[body]), objects=[source])[0])
    assert not TRACKING.keys() & copy["metadata"]["labels"].keys()
    assert copy["metadata"]["labels"]["sync"] == "yes"
    assert copy["metadata"]["annotations"] == {"own": "x"}
    assert source["metadata"] == metadata

    metadata["annotations"] = {"kyverno-mp.io/copies-tracking": "true", **TRACKING}
    (copy,) = made(run(rule(bodies[body]), objects=[source])[0])
    assert copy["metadata"]["annotations"] == metadata["annotations"]
    assert copy["metadata"]["labels"].items() >= TRACKING.items()


def test_missing_source_is_an_error_and_generates_nothing() -> None:
    clone = {"name": "regcred", "namespace": "base"}
    first = rule(target(data={"data": {}}))
    second = {**rule(target(clone=clone)), "name": "s"}
    response, error = run(first, second)
    assert error.startswith("source resource v1/Secret/shop/copy not found: ")
    assert made(response) == []
    assert [found.status for found in response.results] == ["pass", "pass"]


def test_source_is_named_exactly() -> None:
    clone = {"name": "*", "namespace": "base"}
    _, error = run(rule(target(clone=clone)), objects=[SECRET])
    assert "not found" in error


def test_clone_list_copies_by_kind_and_label() -> None:
    other = {**SECRET, "metadata": {"name": "other", "namespace": "base"}}
    selector = {"matchLabels": {"sync": "yes"}}
    clones = {"kinds": ["v1/Secret"], "namespace": "base", "selector": selector}
    body = {"namespace": "shop", "cloneList": clones}
    response, error = run(rule(body), objects=[SECRET, other])
    assert not error
    assert [each["metadata"]["name"] for each in made(response)] == ["regcred"]
    assert made(response)[0]["metadata"]["namespace"] == "shop"


def test_foreach_generates_one_object_for_each_element() -> None:
    entry = {
        "list": "['a', 'b', 'c']",
        "preconditions": {
            "all": [{"key": "{{ element }}", "operator": "NotEquals", "value": "b"}]
        },
        **target(name="s-{{ element }}-{{ elementIndex }}", data={}),
    }
    response, error = run(rule({"foreach": [entry]}))
    assert not error
    names = [each["metadata"]["name"] for each in made(response)]
    assert names == ["s-a-0", "s-c-2"]


def test_unmet_preconditions_skip() -> None:
    conditions = {"all": [{"key": "a", "operator": "Equals", "value": "b"}]}
    response, error = run(rule(target(data={}), preconditions=conditions))
    assert not error
    assert [found.status for found in response.results] == ["skip"]
    assert made(response) == []


def test_trigger_that_no_longer_matches_fails() -> None:
    match = {"any": [{"resources": {"kinds": ["Namespace"], "names": ["old"]}}]}
    old = {**TRIGGER, "metadata": {"name": "old"}}
    body = rule(target(data={}), match=match)
    response, _ = run(body, operation="UPDATE", old_object=old)
    assert [found.status for found in response.results] == ["fail"]
    response, _ = run(body)
    assert response.results == []


def test_unresolved_variable_is_an_error() -> None:
    data = {"data": {"x": "{{ request.object.spec.none }}"}}
    response, error = run(rule(target(data=data)))
    assert "Unknown key" in error
    assert [found.status for found in response.results] == ["pass"]


def test_a_namespaced_policy_stays_in_its_namespace() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "labels": {"to": "other"}},
    }
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    inside = target(namespace="shop")
    outside = target(namespace="{{ request.object.metadata.labels.to }}", data={})
    clone = {"name": "regcred", "namespace": "base"}
    asked = {"kind": "Pod", "namespace": "shop", "object": pod}

    def told(body: dict[str, Any]) -> str:
        found = run(rule(body, match=match), policy="Policy", objects=[SECRET], **asked)
        return found[1]

    assert told({**inside, "data": {}}) == ""
    assert told(outside).startswith("a namespaced policy cannot generate resources in")
    assert told({**inside, "clone": clone}).startswith(
        "a namespaced policy cannot clone resources from other namespaces, expected: "
        "shop, received: base"
    )


def test_foreach_ends_with_the_budget() -> None:
    """Otherwise each of the remaining elements spends the budget again."""
    body = {
        "foreach": [
            {
                "list": "request.object.spec.xs",
                **target(name="a{{ elementIndex }}"),
                "data": {"data": {"a": "{{ element }}"}},
            }
        ]
    }
    many = {**TRIGGER, "spec": {"xs": ["x"] * 100_000}}
    response, error = run(rule(body), object=many)
    assert error == "expression exceeded its byte budget"
    assert [found.generated for found in response.results] == [()]
