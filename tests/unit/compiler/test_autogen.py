"""Test that rules on Pods become the same rules on controllers as in upstream."""

from typing import Any

import pytest

from kyverno_mp.compiler.autogen.rewrite import shift_references
from kyverno_mp.compiler.autogen.rules import (
    can_autogen,
    expand,
    expand_for_kind,
    rules_of_kinds,
)
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.policy.documents.cluster_policy import (
    AUTOGEN_ANNOTATION,
    AnyPolicy,
    ClusterPolicy,
)
from kyverno_mp.policy.reading.decode import decode

PODS = {"any": [{"resources": {"kinds": ["Pod"]}}]}
CONTROLLERS = [
    "apps/v1/DaemonSet",
    "apps/v1/Deployment",
    "batch/v1/Job",
    "apps/v1/ReplicaSet",
    "v1/ReplicationController",
    "apps/v1/StatefulSet",
]


def policy(annotation: str | None = None, *rules: dict[str, Any]) -> AnyPolicy:
    made = []
    for index, rule in enumerate(rules or ({},)):
        base = {
            "name": f"r{index}",
            "match": PODS,
            "validate": {"pattern": {"spec": {"x": 1}}},
        }
        merged = {**base, **rule}
        made.append({key: one for key, one in merged.items() if one is not None})
    annotations = {} if annotation is None else {AUTOGEN_ANNOTATION: annotation}
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"rules": made},
        }
    )
    assert isinstance(document, ClusterPolicy)
    return document


def names(document: AnyPolicy) -> list[str]:
    return [rule.name for rule in expand(document)]


def kinds(rule: Any) -> list[str]:
    return list(rule.match.any[0].resources.kinds)


def test_order_kinds_and_patterns() -> None:
    rules = expand(policy(None, {}, {}))
    assert [rule.name for rule in rules] == [
        "r0",
        "r1",
        "autogen-r0",
        "autogen-cronjob-r0",
        "autogen-r1",
        "autogen-cronjob-r1",
    ]
    assert kinds(rules[2]) == CONTROLLERS
    assert kinds(rules[3]) == ["batch/v1/CronJob"]
    assert rules[2].validate is not None
    assert rules[3].validate is not None
    assert rules[2].validate.pattern == {"spec": {"template": {"spec": {"x": 1}}}}
    assert rules[3].validate.pattern == {
        "spec": {"jobTemplate": {"spec": {"template": {"spec": {"x": 1}}}}}
    }


def resources(**given: Any) -> dict[str, Any]:
    return {"any": [{"resources": {"kinds": ["Pod"], **given}}]}


@pytest.mark.parametrize(
    "rule",
    [
        {"validate": None, "generate": {"kind": "A", "name": "b", "apiVersion": "v1"}},
        {"validate": None, "mutate": {"patchesJson6902": "[]"}},
        {
            "validate": None,
            "mutate": {"foreach": [{"list": "a", "patchesJson6902": "[]"}]},
        },
        {"match": resources(name="a")},
        {"match": resources(names=["a"])},
        {"match": resources(selector={})},
        {"match": resources(annotations={})},
        {"match": resources(kinds=["v1/Pod", "Deployment"])},
        {"exclude": resources(name="a")},
    ],
)
def test_one_rule_prevents_autogen_for_all(rule: dict[str, Any]) -> None:
    document = policy(None, {}, rule)
    assert not can_autogen(document.spec)
    assert expand(document) == document.spec.rules


def test_versioned_pod_alone_does_not_trigger_autogen() -> None:
    """Without an unversioned ``Pod``, ``v1/Pod`` never triggers autogen."""
    assert names(policy(None, {"match": resources(kinds=["v1/Pod"])})) == ["r0"]
    both = policy(None, {"match": resources(kinds=["v1/Pod"])}, {})
    assert "autogen-r0" in names(both)


@pytest.mark.parametrize(
    ("annotation", "expanded", "validated"),
    [
        ("none", ["r0"], ["r0"]),
        ("", ["r0"], ["r0"]),
        ("Deployment", ["r0", "autogen-r0"], ["r0", "autogen-r0"]),
        ("CronJob", ["r0", "autogen-cronjob-r0"], ["r0", "autogen-cronjob-r0"]),
        ("all", ["r0", "autogen-r0", "autogen-cronjob-r0"], ["r0"]),
        (
            "Job, CronJob",
            ["r0", "autogen-r0", "autogen-cronjob-r0"],
            ["r0", "autogen-r0"],
        ),
    ],
)
def test_annotation(annotation: str, expanded: list[str], validated: list[str]) -> None:
    document = policy(annotation)
    assert names(document) == expanded
    assert [each.rule.name for each in rules_of_kinds(document)] == validated


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("Pod", [(("Pod",), "v1/Pod")]),
        ("Deployment,Pod", [((), "apps/v1/Deployment"), (("Pod",), "v1/Pod")]),
        ("ConfigMap", [(("ConfigMap",), "ConfigMap")]),
        ("Deployment,ConfigMap", [((), "apps/v1/Deployment")]),
        ("none,Pod", [(("Pod",), "v1/Pod")]),
    ],
)
def test_any_other_kind_in_the_annotation_has_a_rule(
    annotation: str, expected: list[tuple[tuple[str, ...], str]]
) -> None:
    """Compared with the real program, which computes rules for one kind at a time."""
    own, *made = rules_of_kinds(policy(annotation))
    assert own.rule.name == "r0"
    assert {one.rule.name for one in made} == {"autogen-r0"}
    assert [(one.only, *kinds(one.rule)) for one in made] == expected


@pytest.mark.parametrize(
    ("kind", "is_matched"),
    [
        ("ConfigMap", True),
        ("v1/ConfigMap", True),
        ("Config*", True),
        ("*/*", True),
        ("Secret", False),
        ("ConfigMap/status", False),
    ],
)
def test_kind_that_another_rule_matches_has_a_rule_beside_controllers(
    kind: str, *, is_matched: bool
) -> None:
    """GO: the policy cache finds the policy, then rules are computed for the kind.

    Kyverno pkg/policycache/store.go, pkg/engine/validation.go, pkg/autogen/v1.
    """
    other = {"match": {"any": [{"resources": {"kinds": [kind]}}]}}
    made = rules_of_kinds(policy("Deployment,ConfigMap", {}, other))[2:]
    expected = [("ConfigMap",)] if is_matched else []
    assert [one.only for one in made if one.only] == expected


def test_untrimmed_annotation_loses_the_second_kind() -> None:
    rules = expand(policy("Deployment, Job"))
    assert kinds(rules[1]) == ["apps/v1/Deployment"]


def test_view_of_one_kind() -> None:
    document = policy()
    assert expand_for_kind(document, "Pod") == document.spec.rules
    deployment = expand_for_kind(document, "Deployment")
    assert [rule.name for rule in deployment] == ["r0", "autogen-r0"]
    assert kinds(deployment[1]) == ["apps/v1/Deployment"]
    cron = expand_for_kind(document, "CronJob")
    assert [rule.name for rule in cron] == ["r0", "autogen-cronjob-r0"]


def test_omitted_rules() -> None:
    document = policy(
        None,
        {"name": "autogen-own"},
        {"match": resources(kinds=["Service"])},
        {"exclude": resources(kinds=["Service"])},
        {"validate": {"manifests": {"attestors": []}}},
        {},
    )
    assert names(document)[4:] == ["autogen-r4", "autogen-cronjob-r4"]
    assert "autogen-own" not in names(document)


def test_filters_without_pod() -> None:
    """The rule for controllers keeps such filters; the CronJob rule overwrites them."""
    match = {
        "any": [{"resources": {"kinds": ["Pod"]}}, {"resources": {"kinds": ["Node"]}}]
    }
    _, others, cron = expand(policy(None, {"match": match}))
    assert others.match.any[1].resources.kinds == ("Node",)
    assert cron.match.any[1].resources.kinds == ("batch/v1/CronJob",)


def test_text_replacement_covers_the_whole_rule() -> None:
    rule = {
        "validate": {
            "message": "{{ request.object.metadata.name }} $(./../deny/x)",
            "deny": {
                "conditions": {
                    "all": [
                        {
                            "key": "{{ request.object.spec.a }}",
                            "operator": "Equals",
                            "value": "{{ request.oldObject.spec.b }}",
                        }
                    ],
                    "any": [],
                }
            },
        },
        "context": [
            {"name": "c", "variable": {"jmesPath": "request.oldObject.metadata.x"}}
        ],
        "preconditions": {"any": []},
    }
    _, others, cron = expand(policy(None, rule))
    assert others.validate is not None
    assert others.validate.message == (
        "{{ request.object.spec.template.metadata.name }} $(./../deny/spec/template/x)"
    )
    assert others.validate.deny is not None
    assert others.validate.deny.conditions == {
        "all": [
            {
                "key": "{{ request.object.spec.template.spec.a }}",
                "operator": "Equals",
                "value": "{{ request.oldObject.spec.template.spec.b }}",
            }
        ]
    }
    assert others.preconditions is None
    assert cron.context[0].variable is not None
    assert cron.context[0].variable.jmes_path == (
        "request.oldObject.spec.jobTemplate.spec.template.metadata.x"
    )


def test_other_bodies() -> None:
    anys = {"anyPattern": [{"a": 1}], "message": "m"}
    tree = {"assert": {"object": {"a": 1}, "(x)": True}}
    merge = {"patchStrategicMerge": {"a": 1}, "targets": []}
    cel = {
        "cel": {"expressions": [{"expression": "object.spec.x == oldObject.spec.x"}]}
    }
    rules = expand(
        policy(
            "Deployment",
            {"validate": anys},
            {"validate": tree},
            {"validate": None, "mutate": merge},
            {"validate": cel},
        )
    )
    bodies = [rule.raw() for rule in rules[4:]]
    assert bodies[0]["validate"]["anyPattern"] == [{"spec": {"template": {"a": 1}}}]
    assert bodies[1]["validate"]["assert"] == {
        "object": {"spec": {"template": {"a": 1}}},
        "(x)": True,
    }
    assert bodies[2]["mutate"] == {
        "patchStrategicMerge": {"spec": {"template": {"a": 1}}}
    }
    assert bodies[3]["validate"]["cel"]["expressions"] == [
        {"expression": "object.spec.template.spec.x == oldObject.spec.template.spec.x"}
    ]


def test_long_names_are_truncated() -> None:
    rules = expand(policy("Deployment", {"name": "n" * 63}))
    assert rules[1].name == "autogen-" + "n" * 55


@pytest.mark.parametrize(
    ("message", "pivot", "shifted"),
    [
        ("none", "pattern", "none"),
        ("$(./../../pattern/spec/x)", "pattern", "$(./../../pattern/S/spec/x)"),
        ("a $(/pattern/x) b", "pattern", "a $(/pattern/S/x) b"),
        ("\\$(/pattern/x)", "pattern", "\\$(/pattern/x)"),
        ("$(/anyPattern/1/x)", "anyPattern", "$(/anyPattern/1/S/x)"),
    ],
)
def test_references(message: str, pivot: str, shifted: str) -> None:
    assert shift_references(message, "S", pivot) == shifted


def test_rule_without_cel_expressions_is_kept() -> None:
    document = policy("Deployment", {"validate": {"cel": {"expressions": []}}})
    assert names(document) == ["r0", "autogen-r0"]
    bodies = [rule.validate for rule in compile_policy(document).rules]
    assert all(body is not None and body.cel is not None for body in bodies)
