"""JSON patches that only add give values/patches/json_patch's results, in one pass.

A failure means: the fast path that nearly all JSON patches take changes an object
differently from the slow path, which is compared with the real program.
"""

import copy
import json
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.patches.json_additions import add_all, link_additions
from kyverno_mp.values.patches.json_patch import apply_patch, check_operations
from kyverno_mp.values.spending import FREE

_KEYS = st.sampled_from(["a", "b", "c", "a/b", "0", "", "kind"])
_SCALARS = st.sampled_from([None, 0, 1, 1.0, True, "", "x"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)
_DOCUMENTS = st.fixed_dictionaries(
    {"a": st.lists(_VALUES, max_size=3), "b": _VALUES},
    optional={"c": st.dictionaries(_KEYS, _VALUES, max_size=3), "kind": _SCALARS},
)
_TOKENS = st.sampled_from(
    ["a", "b", "c", "a", "a~1b", "~0", "0", "1", "2", "01", "-1", "9", "-", "", "kind"]
)
_PATHS = st.lists(_TOKENS, max_size=4).map(lambda t: "".join(f"/{x}" for x in t))
_ADDS = st.fixed_dictionaries(
    {"op": st.just("add"), "path": _PATHS | st.just("a"), "value": _VALUES}
)
_OTHERS = st.one_of(
    st.fixed_dictionaries({"op": st.just("remove"), "path": _PATHS}),
    st.fixed_dictionaries({"op": st.just("copy"), "path": _PATHS, "from": _PATHS}),
)
_PATCHES = st.lists(st.lists(_ADDS, max_size=3), max_size=3)


def _text(value: Any) -> str:
    """Return JSON; 1 and 1.0 are the same number, so a patch may leave either."""

    def as_read(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: as_read(item) for key, item in value.items()}
        if isinstance(value, list):
            return [as_read(item) for item in value]
        return float(value) if type(value) is int else value

    return json.dumps(as_read(value))


@settings(max_examples=1000)
@given(_DOCUMENTS, _PATCHES)
def test_additions(document: dict[str, Any], patches: list[Any]) -> None:
    linked = [link_additions(check_operations(patch)) for patch in patches]
    regular = [each for each in linked if each is not None]
    if len(regular) < len(linked):
        event("irregular")
        return
    before = copy.deepcopy((document, patches))
    found = add_all(document, regular, FREE)
    assert (document, patches) == before
    if found is None:
        event("left to json_patch")
        return
    wanted: Any = document
    for patch in patches:
        wanted = apply_patch(wanted, patch)
    event("changed" if found is not document else "same")
    # Compared as text: the order of keys decides the order of a patch's operations.
    assert _text(found) == _text(wanted)
    assert (found is document) == (_text(found) == _text(document))
    assert found.get("kind") == document.get("kind")


@given(st.lists(_ADDS, max_size=2), _OTHERS)
def test_other_operations_are_not_linked(adds: list[Any], other: Any) -> None:
    assert link_additions([*adds, other]) is None


@settings(max_examples=500)
@given(_DOCUMENTS, _ADDS)
def test_failed_patches_are_never_applied(document: dict[str, Any], add: Any) -> None:
    linked = link_additions([add])
    found = None if linked is None else add_all(document, [linked], FREE)
    try:
        apply_patch(document, [add])
    except ExpressionFailed:
        assert found is None
