# ruff: noqa: E501 - a table
"""Test scalar patterns with values (docs/behaviour/engine 5.1-5.4)."""

from typing import Any

import pytest

from kyverno_mp.expr.pattern.leaf import compile_leaf, match_leaf
from kyverno_mp.expr.pattern.nodes import Leaf
from kyverno_mp.expr.pattern.parse import parse_pattern

HOLDS: list[tuple[Any, Any]] = [
    (True, True), (1, 1), (1, 1.0), (1, "1"), (1, "+01"), (1.0, 1), (1.5, 1.5),
    (1.5, "1.5e0"), (2.0, "2"), (None, None), (None, 0), (None, 0.0), (None, ""),
    (None, False), ("true", True), ("false", False), ("<=1Gi", None), ("<5", None),
    ("!5", None), ("0", None), ("<1h", None), ("?*", "a"), ("?*", 5), ("?*", False),
    ("1m", "60s"), ("1m", "0.001"), ("1000m", 1), ("1.0", "1"), ("1.5E+00", 1.5),
    ("!*:latest & *:*", "a:1"), ("a | b*", "bc"), ("a|>b", "a|>b"), ("10-20", 15),
    ("10Mi-1Gi", "512Mi"), ("1h-2h", "90m"), ("-5-5", -3), ("5!-10", 4),
    ("5!-10", "11"), ("2023-01", "2023-01"), (">", ">"), ("> 0", 1000),
    ("m", None), ("!foo", 5), ("", ""), ("1.5", 1.5), (">0.5", 1), ("<=0.5", 0),
    ("1e3", 1000), ("!0", 5.5), ("x", []), (None, []),
]  # fmt: skip
FAILS: list[tuple[Any, Any]] = [
    (True, "true"), (True, 1), (1, True), (1, 1.5), (1, "1.0"), (1, "1_0"), (1, " 1"),
    (1, None), (1.5, 1), (1.5, None), (1.0, True), (1.5, "1,5"), (None, {}), (None, "a"),
    (None, [[]]), (">0", None), ("?*", None), ("*", None), ("!foo", None), ("?*", ""),
    ("*", {}), ("!a", {}), (">a", "b"), ("!*:latest & *:*", "a"), ("10-20", 21),
    ("5!-10", 7), ("1-2", None), ("true", "True"), ("a", ["a", "b"]), ("a", [["a"]]),
    ("1.5", "1.50x"), ("9223372036854775808", 1), ("<1Gi", "2Gi"), ("1h", 1),
    (2**62, "99999999999999999999"), ("1.5E+00", "1.6"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "value"), HOLDS)
def test_value_satisfies_pattern(pattern: Any, value: Any) -> None:
    """Each row tests one sentence of 5.1-5.4."""
    assert _compiled(pattern, value)
    if type(value) is not list:
        assert match_leaf(value, pattern)


@pytest.mark.parametrize(("pattern", "value"), FAILS)
def test_value_violates_pattern(pattern: Any, value: Any) -> None:
    """Each row tests one sentence of 5.1-5.4."""
    assert not _compiled(pattern, value)
    assert not match_leaf(value, pattern)


def _compiled(pattern: Any, value: Any) -> bool:
    leaf = parse_pattern(pattern).root
    assert type(leaf) is Leaf
    return compile_leaf(leaf)(value)


def test_match_leaf_of_maps_and_lists() -> None:
    """A map matches any map; a list matches nothing."""
    assert match_leaf({}, {"a": 1})
    assert not match_leaf("a", {"a": 1})
    assert not match_leaf(["a"], ["a"])
    assert not match_leaf(["a"], "a")
