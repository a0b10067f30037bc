"""Test that a merge gives the results of Kyverno v1.18.2 with kustomize."""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.patches.strategic_merge import merge

POD = {"apiVersion": "v1", "kind": "Pod"}
CUSTOM = {"apiVersion": "x.io/v1", "kind": "Thing"}
PORT = {"containerPort": 80}


def _port(number: int, protocol: str, **others: str) -> dict[str, Any]:
    return {"containerPort": number, "protocol": protocol, **others}


def _containers(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "image": f"{name}:1"} for name in names]


@pytest.mark.parametrize(
    ("old", "patch", "wanted"),
    [
        # New elements and elements that the patch names come first.
        (
            _containers("a", "b"),
            [{"name": "b", "image": "b:2"}, {"name": "c"}],
            [{"name": "b", "image": "b:2"}, {"name": "c"}, *_containers("a")],
        ),
        (_containers("a", "b"), [{"name": "a", "$patch": "delete"}], _containers("b")),
        (
            _containers("a", "b"),
            [{"name": "b", "image": "z", "$patch": "replace"}],
            _containers("b", "a"),
        ),
        (_containers("a"), [{"$patch": "replace"}, {"name": "z"}], [{"name": "z"}]),
        (
            _containers("a"),
            [{"$patch": "merge"}, {"name": "z"}],
            [{"name": "z"}, *_containers("a")],
        ),
        # An element without its key removes the elements that have one.
        (_containers("a", "b"), [{"image": "z"}], []),
    ],
)
def test_lists_by_name(old: Any, patch: Any, wanted: Any) -> None:
    pod = {**POD, "spec": {"containers": old}}
    merged = merge(pod, {"spec": {"containers": patch}})
    assert merged["spec"]["containers"] == wanted


@pytest.mark.parametrize(
    ("old", "patch", "wanted"),
    [
        ([PORT], [{**PORT, "name": "x"}], [{**PORT, "name": "x"}]),
        (
            [{**PORT, "protocol": "TCP"}],
            [{**PORT, "protocol": "UDP"}],
            [{**PORT, "protocol": "UDP"}, {**PORT, "protocol": "TCP"}],
        ),
        (
            [{**PORT, "protocol": "TCP"}],
            [{**PORT, "protocol": "TCP", "name": "x"}],
            [{**PORT, "protocol": "TCP", "name": "x"}],
        ),
        # New elements come first; the others keep their order.
        (
            [PORT, _port(53, "UDP"), _port(53, "TCP")],
            [_port(443, "TCP"), _port(53, "TCP", name="x")],
            [
                _port(443, "TCP"),
                PORT,
                _port(53, "UDP"),
                _port(53, "TCP", name="x"),
            ],
        ),
        # A missing protocol matches the other element's, but then nothing is merged.
        (
            [PORT, _port(53, "UDP")],
            [{"containerPort": 53, "name": "x"}],
            [PORT, _port(53, "UDP")],
        ),
        # An element without a protocol is not deleted if another element has one.
        (
            [PORT, _port(53, "UDP")],
            [{**PORT, "$patch": "delete"}],
            [PORT, _port(53, "UDP")],
        ),
        ([PORT], [{**PORT, "$patch": "delete"}], []),
    ],
)
def test_lists_by_two_keys(old: Any, patch: Any, wanted: Any) -> None:
    pod = {**POD, "spec": {"containers": [{"name": "a", "ports": old}]}}
    given = {"spec": {"containers": [{"name": "a", "ports": patch}]}}
    found = merge(pod, given)["spec"]["containers"][0]["ports"]
    assert found == wanted


@pytest.mark.parametrize(
    ("kind", "wanted"), [(POD, ["b", "c", "a"]), (CUSTOM, ["b", "c"])]
)
def test_scalars_merge_where_the_kind_is_known(kind: Any, wanted: list[str]) -> None:
    # finalizers merge in built-in kinds only; a custom resource has no schema.
    old = {**kind, "metadata": {"finalizers": ["a", "b"]}}
    merged = merge(old, {"metadata": {"finalizers": ["b", "c"]}})
    assert merged["metadata"]["finalizers"] == wanted


@pytest.mark.parametrize(
    ("old", "patch", "wanted"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {}),
        ({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ({"l": [1, 2]}, {"l": [{"x": None}]}, {"l": [{"x": None}]}),
        # A value that replaces a string becomes a string.
        ({"a": "1", "b": 1}, {"a": 2, "b": "x"}, {"a": "2", "b": "x"}),
    ],
)
def test_maps(old: Any, patch: Any, wanted: Any) -> None:
    assert merge({**CUSTOM, "spec": old}, {"spec": patch}) == {**CUSTOM, "spec": wanted}


@pytest.mark.parametrize(
    ("old", "patch", "text"),
    [
        ({"a": 1}, {"a": {"b": 1}}, "expected ScalarNode but got MappingNode"),
        ({"a": {}}, {"a": [1]}, "expected MappingNode but got SequenceNode"),
        ({"a": {"b": 1}}, {"a": {"$patch": "x"}}, "unknown patch strategy 'x'"),
    ],
)
def test_errors(old: Any, patch: Any, text: str) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        merge({**CUSTOM, "spec": old}, {"spec": patch})
    assert text in caught.value.message


@pytest.mark.parametrize("patch", [{}, {"metadata": {"name": "x"}}])
def test_patch_cannot_delete_the_object(patch: dict[str, Any]) -> None:
    with pytest.raises(ExpressionFailed, match="filter cannot create or delete"):
        merge({**CUSTOM, "spec": {}}, {**patch, "$patch": "delete"})


def test_ports_stay_in_place() -> None:
    """Otherwise, every admission would change an object that already complies."""
    ports = [{"port": 80}, {"port": 53, "protocol": "UDP"}]
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": ports}}
    given = {"spec": {"ports": [{"port": 53, "protocol": "UDP"}]}}
    assert merge(service, given) is service


def test_unchanged_parts_are_shared() -> None:
    pod = {**POD, "metadata": {"labels": {"a": "1"}}, "spec": {"containers": []}}
    merged = merge(pod, {"metadata": {"labels": {"b": "2"}}})
    assert merged["spec"] is pod["spec"]
    assert pod["metadata"] == {"labels": {"a": "1"}}
    assert merge(pod, {"metadata": {"labels": {"a": "1"}}}) is pod


_REPEATED = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
_NAMELESS = [{"name": "B", "value": "1"}, {"value": "5"}]
_DNS = [
    {"containerPort": 53, "protocol": "UDP"},
    {"containerPort": 53},
    {"containerPort": 53, "protocol": "UDP", "name": "twin"},
]


@pytest.mark.parametrize("env", [_REPEATED, _NAMELESS, [*_REPEATED, *_NAMELESS]])
def test_elements_missing_in_the_patch_are_kept(env: list[Any]) -> None:
    """Upstream loses elements with repeated and missing keys in every merge."""
    pod = {
        **POD,
        "metadata": {"finalizers": ["f", "f"]},
        "spec": {
            "containers": [
                {"name": "a", "env": env, "ports": _DNS},
                {"name": "a", "image": "i2"},
                {"image": "i5"},
            ]
        },
    }
    merged = merge(pod, {"metadata": {"labels": {"b": "2"}}})
    assert merged["spec"] is pod["spec"]
    assert merged["metadata"] == {"finalizers": ["f", "f"], "labels": {"b": "2"}}
    assert merge(pod, {}) is pod
    new = {"name": "new", "image": "n"}
    merged = merge(pod, {"spec": {"containers": [new]}})
    assert merged["spec"]["containers"] == [new, *pod["spec"]["containers"]]
    added = {"name": "Z", "value": "9"}
    only = {**POD, "spec": {"containers": [{"name": "c", "env": env}]}}
    given = {"spec": {"containers": [{"name": "c", "env": [added]}]}}
    (container,) = merge(only, given)["spec"]["containers"]
    assert container["env"] == [added, *env]


def test_ports_missing_in_the_patch_are_kept() -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}, *_DNS]
    pod = {**POD, "spec": {"containers": [{"name": "a", "ports": ports}]}}
    given = [{"containerPort": 80, "protocol": "TCP", "name": "web"}]
    patch = {"spec": {"containers": [{"name": "a", "ports": given}]}}
    found = merge(pod, patch)["spec"]["containers"][0]["ports"]
    assert found == [*given, *_DNS]
