"""Merges of apply configurations by the types of kinds.

Expected: structured-merge-diff (typed/merge.go, typed/validate.go) and the rejections
of the API server's mutating policies; the messages are the real command line's.
"""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.typed.merge import Merger
from kyverno_mp.values.typed.schema import Schemas, built_in

SCHEMAS = built_in()


def merged(kind: tuple[str, str], resource: Any, patch: Any) -> Any:
    return Merger(SCHEMAS, SCHEMAS.kinds[kind]).merge(resource, patch)


def of_pod(resource: Any, patch: Any) -> Any:
    return merged(("v1", "Pod"), {"spec": resource}, {"spec": patch})["spec"]


def refusal(patch: Any, resource: Any = None) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        of_pod(resource or {}, patch)
    return caught.value.message


@pytest.mark.parametrize(
    ("resource", "patch", "wanted"),
    [
        ({"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"}),
        ({"a": "1"}, {"a": "2"}, {"a": "2"}),
        ({"a": "1"}, {}, {"a": "1"}),
        ({}, {}, {}),
    ],
)
def test_maps_merge(resource: Any, patch: Any, wanted: Any) -> None:
    found = merged(("v1", "ConfigMap"), {"data": resource}, {"data": patch})
    assert found == {"data": wanted}


def test_absent_field_is_added() -> None:
    assert of_pod({"hostPID": True}, {"hostIPC": False}) == {
        "hostPID": True,
        "hostIPC": False,
    }


def test_elements_merge_by_their_keys() -> None:
    given = {"containers": [{"name": "a", "image": "x"}, {"name": "b"}]}
    patch = {"containers": [{"name": "b", "image": "y"}, {"name": "c", "tty": True}]}
    assert of_pod(given, patch)["containers"] == [
        {"name": "a", "image": "x"},
        {"name": "b", "image": "y"},
        {"name": "c", "tty": True},
    ]


def test_shared_elements_follow_the_patch_order() -> None:
    given = {"volumes": [{"name": name} for name in "abc"]}
    patch = {"volumes": [{"name": name} for name in "dca"]}
    found = [one["name"] for one in of_pod(given, patch)["volumes"]]
    assert found == ["b", "d", "c", "a"]


def test_key_can_have_a_default() -> None:
    """The protocol of a port defaults to TCP."""

    def ports(*listed: Any) -> Any:
        return {"containers": [{"name": "a", "ports": list(listed)}]}

    tcp, udp = {"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}
    named = {"containerPort": 53, "protocol": "TCP", "name": "dns"}
    found = of_pod(ports(tcp, udp), ports(named))["containers"][0]["ports"]
    assert found == [named, udp]


def test_numbers_are_keys_by_value() -> None:
    given = {"spec": {"ports": [{"port": 80.0, "name": "a"}]}}
    patch = {"spec": {"ports": [{"port": 80, "name": "b"}]}}
    found = merged(("v1", "Service"), given, patch)
    assert found["spec"]["ports"] == [{"port": 80, "name": "b"}]


def test_sets_are_united() -> None:
    given = {"metadata": {"finalizers": ["a", "b"]}}
    patch = {"metadata": {"finalizers": ["b", "c"]}}
    found = merged(("v1", "ConfigMap"), given, patch)
    assert found["metadata"]["finalizers"] == ["a", "b", "c"]


def test_elements_with_the_same_key_are_not_merged() -> None:
    twice = [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    given = {"containers": [{"name": "c", "env": twice}]}
    patch = {"containers": [{"name": "c", "env": [{"name": "a", "value": "3"}]}]}
    found = of_pod(given, patch)["containers"][0]["env"]
    assert found == [{"name": "a", "value": "3"}]


@pytest.mark.parametrize(
    ("patch", "paths"),
    [
        ({"tolerations": [{"key": "a"}]}, ".spec.tolerations"),
        ({"nodeSelector": {"a": "b"}}, ".spec.nodeSelector"),
        (
            {"containers": [{"name": "a", "args": ["x"]}]},
            ".spec.containers[0].args",
        ),
    ],
)
def test_atomic_values_are_rejected(patch: Any, paths: str) -> None:
    assert refusal(patch) == (
        "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs:"
        f" {paths}"
    )


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"bogus": 1}, ".spec.bogus: field not declared in schema"),
        (
            {"serviceAccountName": 7},
            (
                ".spec.serviceAccountName: expected string, got"
                " &value.valueUnstructured{Value:7}"
            ),
        ),
        (
            {"terminationGracePeriodSeconds": "seven"},
            (
                ".spec.terminationGracePeriodSeconds: expected numeric (int or float),"
                " got string"
            ),
        ),
        ({"hostPID": "no"}, ".spec.hostPID: expected boolean, got &{no}"),
        ({"containers": "c"}, ".spec.containers: expected list, got &{c}"),
        (
            {"containers": [{"name": "a"}, {"name": "a"}]},
            '.spec.containers: duplicate entries for key [name="a"]',
        ),
        (
            {"containers": [{"name": "a", "x": 1}]},
            '.spec.containers[name="a"].x: field not declared in schema',
        ),
    ],
)
def test_values_of_the_wrong_type(patch: Any, text: str) -> None:
    assert refusal(patch) == (f"failed to convert patch object to typed object: {text}")


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"nodeName": None}, "nodeName: expected string, got &value.value"),
        ({"priority": None}, "priority: expected numeric (int or float), got struct"),
        ({"hostPID": None}, "hostPID: expected boolean, got &{NULL_VALUE}"),
        ({"tolerations": None}, "tolerations: expected list, got &{NULL_VALUE}"),
        ({"nodeSelector": None}, "nodeSelector: expected map, got &{NULL_VALUE}"),
        (
            {"containers": [{"name": "a", "image": None}]},
            (
                'containers[name="a"].image: expected string, got '
                "&value.valueUnstructured{Value:0}"
            ),
        ),
    ],
)
def test_cel_null_matches_no_type(patch: Any, text: str) -> None:
    """A failure means: a policy writes nulls that the real command line rejects."""
    assert f".spec.{text}" in refusal(patch)


def test_null_in_the_object_stays() -> None:
    given = {"nodeName": None, "tolerations": None, "nodeSelector": None}
    assert of_pod(given, {"hostPID": True}) == {**given, "hostPID": True}


def test_several_errors() -> None:
    text = refusal({"hostPID": 1, "hostIPC": 2})
    head, *faults = text.splitlines()
    assert head == "failed to convert patch object to typed object: errors:"
    assert [fault.strip()[:13] for fault in faults] == [
        ".spec.hostIPC",
        ".spec.hostPID",
    ]


def test_the_object_is_checked_too() -> None:
    text = refusal({"hostPID": True}, {"bogus": 1})
    assert text == (
        "failed to convert original object to typed object: .spec.bogus: field not"
        " declared in schema"
    )


def test_every_type_of_the_tables_is_known() -> None:
    """Every notation that a kind uses can be read."""
    seen: set[str] = set()
    waiting = list(SCHEMAS.kinds.values())
    while waiting:
        notation = waiting.pop()
        if not notation or notation in seen:
            continue
        seen.add(notation)
        atom = SCHEMAS.atom(notation)
        if atom.list is not None:
            waiting.append(atom.list.items)
        if atom.map is not None:
            waiting += [atom.map.items, *atom.map.fields.values()]
    assert {"=core.v1.Container", "=apps.v1.DeploymentSpec"} <= seen


def test_custom_kinds_extend_the_tables() -> None:
    from kyverno_mp.values.typed.schema import MapType

    more: Schemas = SCHEMAS.extended(
        {("example.com/v1", "Thing"): "=Thing"}, {"Thing": MapType({"a": "[*]s"})}
    )
    found = Merger(more, "=Thing").merge({"a": ["1"]}, {"a": ["2"]})
    assert found == {"a": ["1", "2"]}
    assert "example.com/v1" in more.versions
