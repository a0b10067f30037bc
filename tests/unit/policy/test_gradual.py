"""Which annotations put a policy into force gradually; docs/gradual-enforcement.md."""

import pytest

from kyverno_mp.compiler.cel_kinds.review import refusals
from kyverno_mp.policy.cel_kinds.served import decode_served
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.check import read
from kyverno_mp.policy.gradual import (
    Budget,
    Rollout,
    rollout_of,
    rollout_problems,
)
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.values.jsonvalue import Json

HOUR_NS = 3_600 * 10**9
TWO = "10 -> 100 every 1h"


def named(**values: str) -> dict[str, str]:
    return {f"kyverno-mp.io/enforce-{name}": text for name, text in values.items()}


@pytest.mark.parametrize(
    ("values", "rollout"),
    [
        ({}, None),
        ({"percent": "100"}, None),
        ({"percent": "0"}, Rollout((0,))),
        ({"percent": "10", "by": "owner"}, Rollout((10,), by_owner=True)),
        ({"percent": "10", "by": "namespace"}, Rollout((10,))),
        (
            {"schedule": "10 -> 50 -> 100 every 24h"},
            Rollout((10, 50, 100), 24 * HOUR_NS),
        ),
        (
            {"percent": "50", "rings": "dev-*, test; staging-*"},
            Rollout((50,), rings=(("dev-*", "test"), ("staging-*",))),
        ),
        (
            {"schedule": TWO, "denials": "20 per 1h"},
            Rollout((10, 100), HOUR_NS, budget=Budget(20, HOUR_NS, 10, 10)),
        ),
        (
            {"schedule": TWO, "denials": "3 per 24h, 201 per user, 1 per namespace"},
            Rollout((10, 100), HOUR_NS, budget=Budget(3, 24 * HOUR_NS, 1, 201)),
        ),
        (
            {"schedule": TWO, "denials": "1 per 1m"},
            Rollout((10, 100), HOUR_NS, budget=Budget(1, HOUR_NS // 60, 1, 1)),
        ),
    ],
)
def test_annotations_are_read(values: dict[str, str], rollout: Rollout | None) -> None:
    annotations = {"other": "1", **named(**values)}
    assert rollout_of(annotations) == rollout
    assert not list(rollout_problems(annotations))


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"percent": ""}, "percent"),
        ({"percent": "101"}, "percent"),
        ({"percent": "-1"}, "percent"),
        ({"percent": "1\u0660"}, "percent"),
        ({"percent": "10", "schedule": "10 -> 20 every 1h"}, "percent"),
        ({"schedule": "10 -> 50"}, "schedule"),
        ({"schedule": "50 -> 10 every 1h"}, "schedule"),
        ({"schedule": "0 -> 10 every 1h"}, "schedule"),
        ({"schedule": "10 -> 50 every 1s"}, "schedule"),
        ({"schedule": " -> ".join(map(str, range(1, 22))) + " every 1h"}, "schedule"),
        ({"percent": "10", "by": "user"}, "by"),
        ({"percent": "10", "by": "owner", "rings": "dev"}, "rings"),
        ({"percent": "10", "rings": "dev;"}, "rings"),
        ({"percent": "10", "rings": "Dev"}, "rings"),
        ({"percent": "10", "rings": ",".join(["a"] * 101)}, "rings"),
        ({"percent": "10", "rings": "a" * 9_000}, "rings"),
        ({"by": "owner"}, "by"),
        ({"percent": "10", "denials": "5 per 1h"}, "denials"),
        ({"schedule": "50 every 1h", "denials": "5 per 1h"}, "denials"),
        ({"denials": "5 per 1h"}, "denials"),
        ({"schedule": TWO, "denials": "5"}, "denials"),
        ({"schedule": TWO, "denials": "0 per 1h"}, "denials"),
        ({"schedule": TWO, "denials": "201 per 1h"}, "denials"),
        ({"schedule": TWO, "denials": "5 per 59s"}, "denials"),
        ({"schedule": TWO, "denials": "5 per 169h"}, "denials"),
        ({"schedule": TWO, "denials": "5 per 1h, 0 per user"}, "denials"),
        ({"schedule": TWO, "denials": "5 per 1h, 2 per group"}, "denials"),
        ({"schedule": TWO, "denials": "5 per 1h, 2 per user, 3 per user"}, "denials"),
        ({"percentage": "10"}, "percentage"),
    ],
)
def test_invalid_annotation_is_named_and_enforces_fully(
    values: dict[str, str], name: str
) -> None:
    (problem,) = rollout_problems(named(**values))
    assert f"enforce-{name}]: Invalid value" in problem.upstream
    assert rollout_of(named(**values)) is None


def cluster_policy(annotations: dict[str, str], body: Json) -> Json:
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"rules": [{"name": "r", "match": match, **body}]},
    }


def cel_policy(kind: str, annotations: dict[str, str], spec: Json) -> Json:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, **spec},
    }


def refused(kind: str, annotations: dict[str, str], spec: Json) -> list[str]:
    decoded = decode_served(cel_policy(kind, annotations, spec))
    assert not isinstance(decoded, CelPolicyException)
    return refusals(decoded)


DENY = {"validate": {"failureAction": "Enforce", "message": "no", "deny": {}}}
MUTATE = {"mutate": {"patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}}}}
VALIDATIONS = {"validations": [{"expression": "false", "message": "no"}]}
GENERATE = {
    "generate": [{"expression": "generator.apply('default', [object])"}],
}


def test_policies_of_both_generations_are_checked() -> None:
    bad, good = named(percent="1000"), named(percent="10")
    with pytest.raises(DocumentInvalid, match="enforce-percent"):
        read(cluster_policy(bad, DENY))
    read(cluster_policy(good, DENY))
    (reason,) = refused("ValidatingPolicy", bad, VALIDATIONS)
    assert "enforce-percent" in reason
    assert not refused("ValidatingPolicy", good, VALIDATIONS)


def test_policy_that_denies_nothing_has_no_share() -> None:
    good = named(percent="10")
    with pytest.raises(DocumentInvalid, match="can deny"):
        read(cluster_policy(good, MUTATE))
    (reason,) = refused("GeneratingPolicy", good, GENERATE)
    assert "can deny" in reason
