"""Anchors of patches are processed as in Kyverno (recorded from the real program)."""

import json
import random
from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.mutate.anchors import (
    adds_only,
    clean,
    prepare,
    preprocess,
    preprocess_adds,
)

TWO = {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:2"}]}


@pytest.mark.parametrize(
    ("patch", "resource", "wanted"),
    [
        ({"+(a)": 1}, {}, {"a": 1}),
        ({"+(a)": 1, "b": 2}, {"a": 0}, {"b": 2}),
        ({"(a)": "x*", "b": 1}, {"a": "xy"}, {"b": 1}),
        ({"(a)": "x*", "b": 1}, {"a": "z"}, None),
        ({"(a)": "x*", "b": 1}, {}, None),
        ({"<(a)": ">5", "b": 1}, {"a": 6}, {"b": 1}),
        ({"(a)": "true", "b": 1}, {"a": True}, {"b": 1}),
        ({"=(a)": 1}, {}, {"=(a)": 1}),
        # A condition with +() inside is not compared, and stays if content remains.
        ({"m": {"(a)": {"+(b)": 1}}}, {"m": {"a": {"c": 2}}}, {"m": {"a": {"b": 1}}}),
        # The top-level keys keep their anchors.
        ({"(a)": {"b": 1}, "c": 2}, {"a": {"b": 1}}, {"(a)": {"b": 1}, "c": 2}),
        # An empty map of the policy is a value; one emptied by its anchors is not.
        ({"a": {}, "b": []}, {}, {"a": {}, "b": []}),
        ({"v": [{"name": "t", "e": {}}]}, {}, {"v": [{"name": "t", "e": {}}]}),
        ({"ingress": [{}]}, {}, {"ingress": [{}]}),
        ({"+(a)": {}}, {}, {"a": {}}),
        ({"m": {"+(a)": 1}, "b": {}}, {"m": {"a": 2}}, {"b": {}}),
        ({"m": {"n": {"+(a)": 1}}}, {"m": {"n": {"a": 2}}}, {}),
        ({"m": {"(a)": {}, "b": {}}}, {"m": {"a": {}}}, {"m": {"b": {}}}),
        ({"m": {"(a)": {}}}, {"m": {"a": {}}}, {}),
        ({"+(a)": 1}, {"a": 2}, {}),
        (
            {"containers": [{"(name)": "*", "s": {}}]},
            TWO,
            {"containers": [{"name": "a", "s": {}}, {"name": "b", "s": {}}]},
        ),
        (
            {"containers": [{"(name)": "*", "p": 1}]},
            TWO,
            {"containers": [{"name": "a", "p": 1}, {"name": "b", "p": 1}]},
        ),
        (
            {"containers": [{"(image)": "*:2", "p": 1}]},
            TWO,
            {"containers": [{"name": "b", "p": 1}]},
        ),
        ({"containers": [{"(image)": "*:9", "p": 1}]}, TWO, {}),
        ({"containers": [{"(name)": "*", "p": 1}]}, {}, {}),
        # A global anchor in a list: one element must pass; no named copies.
        ({"x": {"y": 1}, "containers": [{"<(image)": "*:2"}]}, TWO, {"x": {"y": 1}}),
        ({"x": {"y": 1}, "containers": [{"<(image)": "*:9"}]}, TWO, None),
    ],
)
def test_preprocess(patch: Any, resource: Any, wanted: Any) -> None:
    before = repr(patch)
    assert preprocess(prepare(patch), resource) == wanted
    assert repr(patch) == before


def test_copied_element_is_shared() -> None:
    # The first container lacks the field, so +() is removed for the second one, too.
    patch = {"containers": [{"(name)": "*", "+(image)": "z"}]}
    resource = {"containers": [{"name": "a"}, {"name": "b", "image": "y"}]}
    assert preprocess(prepare(patch), resource) == {
        "containers": [{"name": "a", "image": "z"}, {"name": "b", "image": "z"}]
    }


def test_two_elements_with_anchors() -> None:
    # Kyverno's deletion code runs past the end of the list here and panics.
    patch = {"containers": [{"(image)": "p"}, {"(image)": "q"}]}
    with pytest.raises(ExpressionFailed, match="two elements with anchors"):
        preprocess(prepare(patch), TWO)


def test_clean_keeps_empty_maps() -> None:
    patch = {"a": {"b": {}}, "c": [{"d": {}, "e": 1}]}
    assert clean(prepare(patch)) == patch


def _value(chance: random.Random, depth: int, keys: tuple[str, ...]) -> Any:
    if not depth or chance.random() < 0.2:
        return chance.choice([1, "a", None, "", {}, True])
    count = chance.randint(0, 3)
    return {chance.choice(keys): _value(chance, depth - 1, keys) for _ in range(count)}


def test_fast_path_for_patches_that_only_add() -> None:
    """Patches without other anchors are applied in one pass, with the same result."""
    chance = random.Random(1)
    compared = 0
    for _ in range(4000):
        patch = {"m": _value(chance, 3, ("a", "b", "+(a)", "+(b)", "+(c)"))}
        prepared = prepare(patch)
        if adds_only(prepared):
            resource = {"m": _value(chance, 3, ("a", "b", "c"))}
            short = preprocess_adds(prepared, resource)
            wanted = preprocess(prepared, resource) or {}
            # Compared as text, because the order of keys matters.
            assert json.dumps(short) == json.dumps(wanted), (patch, resource)
            compared += 1
    assert compared > 1000
    assert not adds_only({"(a)": 1})
    assert not adds_only({"a": [{"+(b)": 1}]})
    assert not adds_only({"a": 1, "+(a)": 2})
