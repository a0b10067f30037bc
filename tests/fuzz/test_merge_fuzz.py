"""Patches agree with jsonpatch, with a naive merge and with their own inverse.

A failure means: an object is patched differently from RFC 6902, or from kustomize for
regular lists.
"""

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.mutate.anchors import clean, has_anchors, prepare, preprocess
from kyverno_mp.values.patches.json_diff import diff
from kyverno_mp.values.patches.json_equal import same
from kyverno_mp.values.patches.json_patch import apply_patch, check_operations
from kyverno_mp.values.patches.strategic_merge import merge

_KEYS = st.sampled_from(["a", "b", "a/b", "~", "0"])
_LEAVES = st.sampled_from([None, True, 0, 1, "x", "1"])
_VALUES = st.recursive(
    _LEAVES,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(_KEYS, below, max_size=3)
    ),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(_KEYS, _VALUES, max_size=3)
_TOKENS = st.sampled_from(["a", "b", "a~1b", "~0", "0", "1", "2", "-", "x"])
_PATHS = st.lists(_TOKENS, min_size=1, max_size=3).map(lambda t: "/" + "/".join(t))
_OPERATIONS = st.one_of(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["replace", "test"]), "path": _PATHS, "value": _VALUES}
    ),
    st.fixed_dictionaries({"op": st.just("remove"), "path": _PATHS}),
    st.fixed_dictionaries(
        {"op": st.sampled_from(["move", "copy"]), "from": _PATHS, "path": _PATHS}
    ),
    st.fixed_dictionaries({"op": st.just("add"), "path": _PATHS, "value": _VALUES}),
)


@given(_OBJECTS, st.lists(_OPERATIONS, max_size=4))
def test_json_patch_agrees_with_jsonpatch(
    document: dict[str, Any], operations: list[dict[str, Any]]
) -> None:
    """If the strict implementation applies a patch, ours gives the same result."""
    before = copy.deepcopy(document)
    try:
        wanted = jsonpatch.apply_patch(copy.deepcopy(document), operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError):
        wanted = None
    try:
        found = apply_patch(document, check_operations(operations))
    except ExpressionFailed:
        found = None
    assert same(document, before)
    if wanted is None or any(_is_ours(one) for one in operations):
        return
    assert found is not None
    assert same(found, wanted)


def _is_ours(operation: dict[str, Any]) -> bool:
    """Return whether an operation has a different meaning here.

    A pointer to "-" names no element; jsonpatch compares 1 with true as equal; a move
    onto its own child differs.
    """
    texts = (operation["path"], operation.get("from", ""))
    if operation["op"] == "test":
        return True
    if texts[1] and texts[0].startswith(texts[1] + "/"):
        return True
    return operation["op"] != "add" and any("-" in text for text in texts)


@given(_OBJECTS, _OBJECTS)
def test_diff_is_applied_by_jsonpatch(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    operations = diff(before, after)
    assert same(apply_patch(before, operations), after)
    assert same(jsonpatch.apply_patch(copy.deepcopy(before), operations), after)
    assert (not operations) == same(before, after)


def _naive(old: Any, patch: Any) -> Any:
    """Merge maps and replace everything else, as for a kind without a schema."""
    if not isinstance(patch, dict):
        is_quoted = isinstance(old, str) and not isinstance(patch, str | list)
        return json.dumps(patch) if is_quoted else copy.deepcopy(patch)
    merged = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _naive(merged.get(key), value)
    return merged


def _conflict(old: Any, patch: Any) -> bool:
    if isinstance(patch, dict) and isinstance(old, dict):
        return any(_conflict(old.get(key), patch[key]) for key in patch)
    if old is None or patch is None:
        return False
    kinds = (dict, list)
    return any(isinstance(old, kind) != isinstance(patch, kind) for kind in kinds)


@given(_OBJECTS, _OBJECTS)
def test_merge_of_a_custom_resource(old: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy(old)
    if _conflict(old, patch):
        with pytest.raises(ExpressionFailed):
            merge(old, patch)
    else:
        assert same(merge(old, patch), _naive(old, patch))
    assert same(old, before)


_NAMES = st.lists(st.sampled_from("abcd"), unique=True, max_size=4)


@given(_NAMES, _NAMES)
def test_order_of_lists_by_name(old: list[str], patch: list[str]) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"containers": [{"name": name, "old": True} for name in old]},
    }
    given_patch = {"spec": {"containers": [{"name": n, "new": True} for n in patch]}}
    merged = merge(pod, given_patch)["spec"]["containers"]
    rest = [name for name in old if name not in patch]
    assert [one["name"] for one in merged] == patch + rest
    for one in merged:
        assert ("old" in one, "new" in one) == (
            one["name"] in old,
            one["name"] in patch,
        )


_ANCHORED = st.recursive(
    _LEAVES,
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "(a)", "+(a)", "<(a)", "=(b)", "b", "name"]),
            below,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["a", "(a)", "+(b)"]), _ANCHORED), _ANCHORED)
def test_any_patch_yields_a_patch_or_an_error(
    patch: dict[str, Any], resource: Any
) -> None:
    before = copy.deepcopy(patch)
    try:
        found = preprocess(prepare(patch), resource)
    except ExpressionFailed:
        return
    assert same(patch, before)
    if not has_anchors(patch):
        assert same(found, clean(prepare(patch)))
