"""Test that the effects of a rule follow from its calls, at any depth.

A failure means: a rule blocks the event loop, or a pure rule is moved off it without
need.
"""

from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.expr.effects import (
    EFFECT_CLUSTER,
    EFFECT_PURE,
    EFFECT_REGISTRY,
    EFFECT_SHARED,
)
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode

ASKS = "{{ is_external_url(request.object.spec.url) }}"
DENIED = {"conditions": {"all": [{"key": ASKS, "operator": "Equals", "value": True}]}}
CALL = {"name": "a", "apiCall": {"urlPath": "/version"}}
MAP = {"name": "m", "configMap": {"name": "c", "namespace": "d"}}


def effects(**rule: Any) -> int:
    """Return the effects of the only rule of a policy."""
    if not {"validate", "mutate"} & set(rule):
        rule["validate"] = {"deny": {}}
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {
                "name": "p",
                "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
            },
            "spec": {
                "rules": [
                    {
                        "name": "r",
                        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                        **rule,
                    }
                ]
            },
        }
    )
    assert isinstance(document, ClusterPolicy)
    return compile_policy(document).rules[0].effects


def cel(expression: str) -> dict[str, Any]:
    return {"cel": {"expressions": [{"expression": expression}]}}


@pytest.mark.parametrize(
    "rule",
    [
        {"validate": {"deny": DENIED}},
        {"validate": {"pattern": {"spec": {"external": ASKS}}}},
        {"validate": {"foreach": [{"list": "request.object.xs", "deny": DENIED}]}},
        {"preconditions": {"all": DENIED["conditions"]["all"]}},
        {"context": [{"name": "v", "variable": {"value": ASKS}}]},
        {"mutate": {"patchStrategicMerge": {"metadata": {"labels": {"a": ASKS}}}}},
        {"context": [CALL]},
        {"validate": {"foreach": [{"list": "x", "context": [CALL], "deny": {}}]}},
        {"mutate": {"foreach": [{"list": "x", "context": [CALL],
                                 "patchStrategicMerge": {"a": 1}}]}},
        {"validate": cel("authorizer.path('/healthz').check('get').allowed()")},
        {"celPreconditions": [{"name": "c",
          "expression": "authorizer.requestResource.check('create').allowed()"}],
         "validate": cel("true")},
    ],
)  # fmt: skip
def test_cluster_calls_have_the_cluster_effect(rule: dict[str, Any]) -> None:
    assert effects(**rule) & EFFECT_CLUSTER


@pytest.mark.parametrize(
    "rule",
    [
        {"validate": {"message": "no authorizer, no is_external_url", "deny": {}}},
        {"validate": {"pattern": {"spec": {"authorizer": "is_external_url"}}}},
        {"validate": cel("object.spec.authorizer == 'authorizer'")},
        {"validate": cel("request.resource.check == 1")},
    ],
)
def test_plain_text_has_no_effects(rule: dict[str, Any]) -> None:
    assert effects(**rule) == EFFECT_PURE


def test_entries_have_the_effects_of_their_type() -> None:
    assert effects(context=[MAP]) == EFFECT_SHARED | EFFECT_CLUSTER
    image = {"name": "i", "imageRegistry": {"reference": "a"}}
    assert effects(context=[image]) == EFFECT_REGISTRY
    shared = {"name": "g", "globalReference": {"name": "e"}}
    assert effects(context=[shared]) == EFFECT_SHARED
