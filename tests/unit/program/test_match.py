"""Rules match requests as described in engine 1, and explanations agree."""

from typing import Any

import pytest

from kyverno_mp.compiler.rules.match import (
    build_exception_match,
    build_exclude,
    build_match,
)
from kyverno_mp.ir.match import FilterIR, MatchIR
from kyverno_mp.program.matching.match import link_match
from kyverno_mp.program.request import Request
from tests.blocks import exclude_of, filters_of, match_of

POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {
        "name": "web-1",
        "namespace": "shop",
        "labels": {"app": "web"},
        "annotations": {"team": "blue"},
    },
}
NAMESPACE = {"kind": "Namespace", "metadata": {"name": "shop"}}


def pod_request(**facts: Any) -> Request:
    given: dict[str, Any] = {
        "kind": "Pod",
        "namespace": "shop",
        "name": "web-1",
        "object": POD,
        "username": "alice",
        "groups": ("dev", "system:authenticated"),
        "roles": ("shop:editor",),
        "cluster_roles": ("view",),
        "has_user_info": True,
        "namespace_labels": {"tier": "gold"},
    }
    return Request(**{**given, **facts})


def resources(**criteria: Any) -> dict[str, Any]:
    return {"any": [{"resources": criteria}]}


CASES: list[tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], bool]] = [
    (resources(kinds=["Pod"]), None, {}, True),
    (resources(kinds=["pod"]), None, {}, False),
    (resources(kinds=["Deployment", "P*"]), None, {}, True),
    (resources(kinds=["Pod"]), None, {"subresource": "exec"}, False),
    (resources(kinds=["Pod"]), None, {"subresource": "ephemeralcontainers"}, True),
    (resources(kinds=["*"]), None, {"subresource": "ephemeralcontainers"}, True),
    (resources(kinds=["*"]), None, {"subresource": "exec"}, False),
    (resources(kinds=["*/*"]), None, {"subresource": "exec"}, True),
    (resources(kinds=["Pod/exec"]), None, {"subresource": "exec"}, True),
    (resources(kinds=["v1/Pod"]), None, {"version": "v2"}, False),
    (resources(kinds=["Pod"], operations=["CREATE"]), None, {}, True),
    (resources(kinds=["Pod"], operations=["DELETE"]), None, {}, False),
    (resources(kinds=["Pod"]), None, {"operation": "DELETE"}, True),
    (resources(name="web-*"), None, {}, True),
    (resources(name="web-?"), None, {}, True),
    (resources(names=["db", "web-1"]), None, {}, True),
    (resources(name="web-*", names=["db"]), None, {}, False),
    (resources(namespaces=["shop"]), None, {}, True),
    (resources(namespaces=["sh?p*"]), None, {}, True),
    (resources(namespaces=["other"]), None, {}, False),
    (resources(annotations={"te*": "bl*"}), None, {}, True),
    (resources(annotations={"team": "red"}), None, {}, False),
    (resources(selector={"matchLabels": {"app": "w*"}}), None, {}, True),
    (resources(selector={"matchLabels": {"app": "db"}}), None, {}, False),
    (resources(selector={"matchLabels": {"a b": "db"}}), None, {}, False),
    (resources(selector={}), None, {}, True),
    (resources(namespaceSelector={"matchLabels": {"tier": "gold"}}), None, {}, True),
    (resources(namespaceSelector={"matchLabels": {"tier": "x"}}), None, {}, False),
    ({}, None, {}, False),
    ({"any": [{}]}, None, {}, False),
    ({"all": [{"resources": {"kinds": ["Pod"]}}, {}]}, None, {}, False),
    ({"resources": {"kinds": ["Pod"]}}, None, {}, True),
    ({"any": [{"roles": ["shop:editor"]}]}, None, {}, True),
    ({"any": [{"roles": ["shop:*"]}]}, None, {}, False),
    ({"any": [{"clusterRoles": ["view", "x"]}]}, None, {}, True),
    ({"any": [{"subjects": [{"kind": "User", "name": "al*"}]}]}, None, {}, True),
    ({"any": [{"subjects": [{"kind": "Group", "name": "d?v"}]}]}, None, {}, True),
    ({"any": [{"subjects": [{"kind": "Robot", "name": "*"}]}]}, None, {}, False),
    (
        {
            "any": [
                {
                    "subjects": [
                        {"kind": "ServiceAccount", "name": "s", "namespace": "n"}
                    ]
                }
            ]
        },
        None,
        {"username": "system:serviceaccount:n:s"},
        True,
    ),
    # exclude
    (resources(kinds=["Pod"]), resources(namespaces=["shop"]), {}, False),
    (resources(kinds=["Pod"]), resources(namespaces=["x"]), {}, True),
    (resources(kinds=["Pod"]), {"any": [{}]}, {}, True),
    (resources(kinds=["Pod"]), {"resources": {"name": "web-1"}}, {}, False),
    (
        resources(kinds=["Pod"]),
        {"all": [{"resources": {"name": "web-1"}}, {"resources": {"name": "x"}}]},
        {},
        True,
    ),
    (
        resources(kinds=["Pod"]),
        {"all": [{"resources": {"name": "web-1"}}, {"resources": {"name": "w*"}}]},
        {},
        False,
    ),
    (
        resources(kinds=["Pod"]),
        {"all": [{"resources": {"name": "web-1"}}, {}]},
        {},
        True,
    ),
    (resources(kinds=["Pod"]), {"any": [{"clusterRoles": ["view"]}]}, {}, False),
    # DELETE uses the old object, UPDATE only the new one (1.7)
    (resources(name="web-1"), None, {"object": {}, "old_object": POD}, True),
    (
        resources(name="old"),
        None,
        {"old_object": {"kind": "Pod", "metadata": {"name": "old"}}},
        False,
    ),
    (resources(kinds=["Pod"]), None, {"object": {}}, False),
    # generateName is used if the name is missing (1.4)
    (
        resources(name="gen-"),
        None,
        {"object": {"kind": "Pod", "metadata": {"generateName": "gen-"}}},
        True,
    ),
    # for a Namespace, namespaces means its name (1.4) and namespaceSelector fails (1.5)
    (
        resources(kinds=["Namespace"], namespaces=["shop"]),
        None,
        {"kind": "Namespace", "object": NAMESPACE, "namespace": "shop"},
        True,
    ),
    (
        resources(kinds=["Namespace"], namespaceSelector={}),
        None,
        {"kind": "Namespace", "object": NAMESPACE},
        False,
    ),
    # background: user criteria are dropped from match, not from exclude (1.6)
    (
        {"any": [{"resources": {"kinds": ["Pod"]}, "roles": ["nobody"]}]},
        None,
        {"has_user_info": False, "roles": ()},
        True,
    ),
    ({"any": [{"roles": ["nobody"]}]}, None, {"has_user_info": False}, False),
    (
        resources(kinds=["Pod"]),
        {"any": [{"resources": {"kinds": ["Pod"]}, "roles": ["nobody"]}]},
        {"has_user_info": False, "roles": ()},
        True,
    ),
]


@pytest.mark.parametrize(("match", "exclude", "facts", "expected"), CASES)
def test_match(
    match: dict[str, Any],
    exclude: dict[str, Any] | None,
    facts: dict[str, Any],
    *,
    expected: bool,
) -> None:
    """A rule that matches other requests than in Kyverno breaks users' policies."""
    matcher = link_match(
        build_match(match_of(match)), build_exclude(exclude_of(exclude)), rule="r"
    )
    request = pod_request(**facts)
    assert expected is matcher.matches(request)
    assert expected is (matcher.explain(request) == "")


def test_operations_are_case_sensitive() -> None:
    """Operations are written in upper case; no other spelling may match."""
    assert not link_match(
        MatchIR("all", (FilterIR(operations=("create",)),)), None
    ).matches(pod_request())


def test_namespaced_policy_matches_only_objects_in_its_namespace() -> None:
    """Namespaced policies apply only to objects in their namespace (1.9)."""
    match = build_match(match_of(resources(kinds=["*"])))
    inside = link_match(match, None, policy_namespace="shop")
    outside = link_match(match, None, policy_namespace="other")
    assert inside.matches(pod_request())
    assert not outside.matches(pod_request())
    assert outside.explain(pod_request()) == "policy and resource namespaces mismatch"
    moved = pod_request(
        namespace="",
        old_object={"kind": "Pod", "metadata": {"name": "a", "namespace": "other"}},
    )
    assert not inside.matches(moved)
    namespace = pod_request(kind="Namespace", object=NAMESPACE, namespace="shop")
    assert not inside.matches(namespace)


def test_exceptions_match_by_separate_rules() -> None:
    """8.7: operations are ignored, Namespaces pass selectors, user info is kept."""
    ignores = link_match(
        build_exception_match(filters_of(resources(operations=["DELETE"]))),
        None,
        for_exception=True,
    )
    assert ignores.matches(pod_request())
    selector = link_match(
        build_exception_match(
            filters_of(
                resources(kinds=["*"], namespaceSelector={"matchLabels": {"no": "no"}})
            )
        ),
        None,
        for_exception=True,
    )
    assert selector.matches(pod_request(kind="Namespace", object=NAMESPACE))
    assert not selector.matches(pod_request())
    by_role = {"any": [{"resources": {"kinds": ["Pod"]}, "roles": ["nobody"]}]}
    user = link_match(
        build_exception_match(filters_of(by_role)), None, for_exception=True
    )
    assert not user.matches(pod_request(has_user_info=False, roles=()))
    empties: list[dict[str, Any]] = [{}, {"any": []}, {"any": [{}]}]
    for empty in empties:
        never = link_match(
            build_exception_match(filters_of(empty)), None, for_exception=True
        )
        assert not never.matches(pod_request())


def test_explanations_equal_upstreams_texts() -> None:
    """Users search logs for these messages."""
    every = {
        "resources": {
            "kinds": ["Job", "v1/Service"],
            "name": "x",
            "names": ["y"],
            "namespaces": ["z"],
            "annotations": {"a": "b"},
            "selector": {"matchLabels": {"a": "b"}},
            "namespaceSelector": {"matchLabels": {"a": "b"}},
        },
        "roles": ["r"],
        "clusterRoles": ["c"],
        "subjects": [{"kind": "User", "name": "bob"}],
    }
    reasons = (
        "kind does not match [Job v1/Service]",
        "name does not match",
        "none of the names match",
        "namespace does not match",
        "annotations does not match",
        "selector does not match",
        "namespace selector does not match labels",
        "user info does not match roles for the given conditionBlock",
        "user info does not match clustersRoles for the given conditionBlock",
        "user info does not match subject for the given conditionBlock",
    )
    lines = "".join(f"\n {i}. {reason}" for i, reason in enumerate(reasons, start=1))
    request = pod_request()
    legacy = link_match(build_match(match_of(every)), None, rule="check")
    assert f"rule check not matched:{lines}" == legacy.explain(request)
    some = link_match(build_match(match_of({"any": [every]})), None, rule="check")
    expected = "rule check not matched:\n 1. no resource matched"
    assert expected == some.explain(request)
    excluded = link_match(
        build_match(match_of(resources(kinds=["Pod"]))),
        build_exclude(
            exclude_of(
                {"any": [{"roles": ["shop:editor"]}, {"resources": {"names": []}}]}
            )
        ),
        rule="check",
    )
    expected = (
        "rule check not matched:\n 1. resource excluded since one of the criteria "
        "excluded it"
    )
    assert expected == excluded.explain(request)
    assert legacy.explain(pod_request(object={})) == "resource is empty"
