"""Test JSON patches with Kyverno's options and the library's messages."""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.patches.json_diff import diff
from kyverno_mp.values.patches.json_patch import apply_patch, check_operations


def _apply(document: Any, *operations: dict[str, Any]) -> Any:
    return apply_patch(document, check_operations(list(operations)))


@pytest.mark.parametrize(
    ("document", "operation", "wanted"),
    [
        ({}, {"op": "add", "path": "/a/b/c", "value": 1}, {"a": {"b": {"c": 1}}}),
        ({}, {"op": "add", "path": "/a/-", "value": 1}, {"a": [1]}),
        ({}, {"op": "add", "path": "/a/2", "value": 1}, {"a": [None, None, 1]}),
        ({"a": None}, {"op": "add", "path": "/a/b", "value": 1}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"op": "add", "path": "/a/-1", "value": 3}, {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/-1"}, {"a": [1]}),
        ({"a": [1]}, {"op": "remove", "path": "/a/7"}, {"a": [1]}),
        ({}, {"op": "remove", "path": "/a/b"}, {}),
        ({"a/b": 1}, {"op": "replace", "path": "/a~1b", "value": 2}, {"a/b": 2}),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/b"}, {"b": 1}),
        ({"a": [1]}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": [1], "b": [1]}),
        ({"a": 1}, {"op": "copy", "from": "/a", "path": ""}, {"a": 1, "": 1}),
        ({"a": 1}, {"op": "copy", "from": "", "path": "/b"}, {"a": 1, "b": {"a": 1}}),
        (
            {"a": {}},
            {"op": "copy", "from": "", "path": "/a/b"},
            {"a": {"b": {"a": {}}}},
        ),
        ({"a": 1}, {"op": "copy", "from": "", "path": ""}, {"a": 1, "": {"a": 1}}),
        ({"a": 1}, {"op": "move", "from": "/a", "path": ""}, {"": 1}),
        ({"a": 1}, {"op": "test", "path": "/b", "value": None}, {"a": 1}),
    ],
)
def test_patch_applies(document: Any, operation: Any, wanted: Any) -> None:
    before = repr(document)
    assert _apply(document, operation) == wanted
    assert repr(document) == before


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (
            {"op": "replace", "path": "/x", "value": 1},
            "replace operation does not apply: doc is missing key: /x: missing value",
        ),
        (
            {"op": "replace", "path": "/x/y", "value": 1},
            (
                "replace operation does not apply: doc is missing path: /x/y: missing"
                " value"
            ),
        ),
        (
            {"op": "test", "path": "/a", "value": 2},
            "testing value /a failed: test failed",
        ),
        ({"op": "add", "path": "/a/b", "value": 2}, "invalid state detected"),
        (
            {"op": "move", "from": "/x", "path": "/y"},
            (
                "error in move for path: 'x': unable to get nonexistent key: x:"
                " missing value"
            ),
        ),
        (
            {"op": "jump", "path": "/a"},
            (
                'failed to decode patches: invalid operation {"op":"jump","path":"/a"}:'
                " unsupported operation"
            ),
        ),
        (
            {"op": "add", "path": "/z/99999999", "value": 1},
            "an index is more than 10000 beyond the list's end",
        ),
    ],
)
def test_patch_is_rejected(operation: Any, text: str) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        _apply({"a": 1}, operation)
    assert caught.value.message == text


def test_copying_a_part_into_itself_terminates() -> None:
    operations = []
    path = "/a"
    for _ in range(12):
        operations.append({"op": "copy", "from": "/a", "path": f"{path}/b"})
        path += "/b"
    with pytest.raises(ExpressionFailed, match="deeper than 512"):
        _apply({"a": {"c": {}}}, *operations * 60)


def test_repeated_copies_are_bounded() -> None:
    operations = [
        {"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(40)
    ]
    with pytest.raises(ExpressionFailed, match="more than 100000 values"):
        _apply({"a": {"c": 1}}, *operations)


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, [("replace", "/a")]),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, [("remove", "/a/b"), ("add", "/a/c")]),
        ([1, 2], [0, 1, 2], [("add", "/0")]),
        ([1, 2, 3, 4], [1, 4], [("remove", "/2"), ("remove", "/1")]),
        ([{"a": 1}, 2], [{"a": 1, "b": 2}, 2], [("add", "/0/b")]),
        ({"x/y~": 1}, {}, [("remove", "/x~1y~0")]),
    ],
)
def test_diff(before: Any, after: Any, wanted: list[tuple[str, str]]) -> None:
    found = diff(before, after)
    assert [(one["op"], one["path"]) for one in found] == wanted
    assert apply_patch(before, found) == after
