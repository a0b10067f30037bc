"""Test operators with the cases of docs/behaviour/engine 4 and 11."""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.conditions.operators import OPERATORS, comparison, prepared

CASES: list[tuple[Any, str, Any, bool]] = [
    # 4.4 Equals
    (True, "Equals", True, True),
    (True, "Equals", "true", False),
    (5, "Equals", 5.0, True),
    (5, "Equals", 5.5, False),
    (5, "Equals", "5", True),
    (5, "Equals", "5.0", False),
    (5.0, "Equals", 5, True),
    (5.0, "Equals", "5.0", True),
    (5.0, "Equals", "0x1p2", False),
    (4.0, "Equals", "0x1p2", True),
    ("5", "Equals", 5.0, False),
    ("1h", "Equals", "60m", True),
    ("1h", "Equals", 3600.0, True),
    ("1h", "Equals", 3600.9, True),
    ("0", "Equals", 0.0, False),
    ("1Gi", "Equals", "1024Mi", True),
    ("8080", "Equals", "80*", False),
    ("nginx:1", "Equals", "nginx*", True),
    ("nginx*", "Equals", "nginx:1", False),
    ([1, 2], "Equals", [1, 2], True),
    ([1], "Equals", [1.0], False),
    ([1, 2], "Equals", [2, 1], False),
    ({"a": [True]}, "Equal", {"a": [True]}, True),
    ({"a": [True]}, "Equals", {"a": [1]}, False),
    (None, "Equals", None, False),
    # 4.5 NotEquals
    (True, "NotEquals", "x", True),
    (5, "NotEquals", 5.5, True),
    (5.5, "NotEquals", 5, True),
    (5, "NotEquals", "x", True),
    ("8080", "NotEquals", "80*", True),
    ("8080", "NotEquals", "abc", True),
    ("1Gi", "NotEquals", "one", True),
    ("8080", "NotEquals", "", True),
    ("Mi", "NotEquals", "x", True),
    ("m", "Equals", "M", True),
    ("8080", "NotEquals", "8081", True),
    ("x", "NotEquals", 5.0, True),
    ("CREATE", "NotEqual", "DELETE", True),
    ("DELETE", "NotEquals", "DELETE", False),
    ([], "NotEquals", {}, True),
    (None, "NotEquals", "x", False),
    # 4.6 scalar keys
    ("a", "AnyIn", ["a*", "b"], True),
    ("a*", "AnyIn", ["abc"], True),
    ("c", "AllIn", ["a", "b"], False),
    ("c", "AnyNotIn", ["a", "b"], True),
    ("a", "AllNotIn", ["a", "b"], False),
    (5.0, "AnyIn", [5], True),
    (1000000.0, "AnyIn", [1000000], False),
    (1000000, "AnyIn", [1000000], True),
    (True, "AnyIn", ["true"], True),
    ("5", "AnyIn", "1-10", True),
    ("50", "AnyIn", "1-10", False),
    ("50", "AnyNotIn", "1-10", True),
    ("5", "AnyIn", "1!-3", False),
    ("a", "AnyIn", '["a","b"]', True),
    ("ab", "AnyIn", '["a*"]', False),
    ("a", "AnyIn", '{"a":1}', False),
    ("a", "AnyNotIn", '{"a":1}', False),
    ("a", "AnyNotIn", 5.0, False),
    ("a", "AnyIn", None, False),
    ({"a": 1}, "AnyIn", ["a"], False),
    (None, "AnyNotIn", ["a"], False),
    (None, "AllNotIn", ["a"], False),
    # 4.6 list keys
    (["a", "b"], "AnyIn", ["b"], True),
    (["a", "b"], "AllIn", ["b"], False),
    (["a", "b"], "AnyNotIn", ["b"], True),
    (["a", "b"], "AllNotIn", ["b"], False),
    (["a", "b"], "AllNotIn", ["c"], True),
    ([], "AnyIn", ["a"], False),
    ([], "AllIn", ["a"], True),
    ([], "AnyNotIn", ["a"], False),
    ([], "AllNotIn", ["a"], True),
    (["a"], "AllIn", [], False),
    ([], "AllIn", [], True),
    (["a"], "AnyNotIn", [], True),
    (["a"], "AllNotIn", [], True),
    ([5], "AnyIn", 5.0, True),
    ([5], "AllIn", 5.0, False),
    ([5], "AllNotIn", 6.0, False),
    (["a"], "AnyIn", "a", True),
    (["a"], "AllNotIn", "a", False),
    (["5", "50"], "AnyIn", "1-10", True),
    (["5", "50"], "AllIn", "1-10", False),
    (["5", "50"], "AnyNotIn", "1-10", True),
    (["5", "50"], "AllNotIn", "1-10", False),
    (["a", "b"], "AllIn", '["a","b","c"]', True),
    (["ab"], "AnyIn", '["a*"]', True),
    # 4.7 In, NotIn
    ("a", "In", ["a*"], True),
    ("a", "In", "a", True),
    ("a", "In", "b", False),
    ("a", "NotIn", "b", False),
    ("a", "NotIn", '["b"]', True),
    (["a"], "In", ["a", "b"], True),
    (["ab"], "In", ["a*"], False),
    (["a", "c"], "NotIn", ["a", "b"], True),
    (["a"], "NotIn", "a", True),
    (["a"], "In", [1], False),
    (["a"], "NotIn", [1], False),
    # 4.8
    (5, "GreaterThan", 4.5, True),
    (5.0, "LessThan", "10", True),
    (90, "GreaterThan", "1h", False),
    # "m" is milli beside a number or a quantity, minutes beside a duration.
    ("1000m", "GreaterThan", 1, False),
    ("1000m", "GreaterThanOrEquals", 1, True),
    ("1500m", "GreaterThan", 1.0, True),
    ("-5m", "LessThan", 0, True),
    (0.5, "LessThan", "600m", True),
    (1, "LessThan", "1m", False),
    ("1000m", "Equals", 1, True),
    ("60m", "Equals", 3600, False),
    ("60m", "NotEquals", 3600, True),
    ("1000m", "Equals", "1", True),
    ("90s", "GreaterThan", "1m", True),
    ("1m", "LessThan", "90s", True),
    ("1m", "Equals", "60s", True),
    ("1m", "DurationLessThan", 90, True),
    # A list holds if any of its elements does.
    ([1, 20], "GreaterThan", 10, True),
    ([1, 2], "GreaterThan", 10, False),
    (["1Gi", "1Mi"], "LessThan", "2Mi", True),
    ([], "LessThan", 10, False),
    ([None, [1], {}], "LessThan", 10, False),
    (["10s", "2h"], "DurationGreaterThan", "1h", True),
    (["10s"], "DurationGreaterThan", "1h", False),
    ("10", "GreaterThan", "9", True),
    ("1Gi", "GreaterThan", 5.0, False),
    ("1Gi", "GreaterThanOrEquals", "1024Mi", True),
    ("5", "GreaterThan", "1m", True),
    ("1h", "LessThanOrEquals", "60m", True),
    ("1.10.0", "GreaterThan", "1.9.0", True),
    ("1.0.0-rc.1", "LessThan", "1.0.0", True),
    ("v1.10.0", "GreaterThan", "1.9.0", False),
    (True, "GreaterThan", 0.0, False),
    (None, "LessThan", 5.0, False),
    # 4.9
    ("1h", "DurationGreaterThan", 60.0, True),
    ("0", "DurationLessThan", "1s", True),
    ("10", "DurationLessThan", "1h", False),
    (1.9, "DurationLessThanOrEquals", 1.0, True),
    # 4.2
    ("a", "equals", "a", True),
    ("a", "ANYIN", ["a"], True),
    (5.0, "greaterthan", 1.0, False),
    ("1h", "durationgreaterthan", 1.0, False),
]


@pytest.mark.parametrize(("key", "operator", "value", "wanted"), CASES)
def test_operator(key: Any, operator: str, value: Any, wanted: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """The comparison and the compiled test give the specified result."""
    compare, test = comparison(operator), prepared(operator, value)
    assert compare is not None
    assert test is not None
    assert (compare(key, value), test(key)) == (wanted, wanted)


def test_every_operator_is_false_for_null() -> None:
    """A null key satisfies no operator, not even a negated one."""
    for operator in OPERATORS:
        compare = comparison(operator)
        assert compare is not None
        assert not compare(None, "x")
        assert not compare(None, ["x"])


def test_unknown_operators_return_none() -> None:
    """The caller fails with upstream's text after both sides are substituted."""
    assert comparison("Has") is None
    assert prepared("Has", "x") is None


def test_deprecated_in_requires_strings() -> None:
    """Where upstream panics, the rule fails with an error."""
    compare = comparison("In")
    assert compare is not None
    with pytest.raises(ExpressionFailed, match="is float64, not string"):
        compare([1.5], ["a"])
