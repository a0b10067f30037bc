"""Test the JMESPath of assertion trees against the community interpreter."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.jmespath.interim import GoInt
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.scope import Runtime


def run(text: str, value: Any, bindings: dict[str, Any] | None = None) -> Any:
    runtime = Runtime(
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic_ns=lambda: 0
    )
    runtime.bindings = bindings
    return link_dialect(parse(text, community=True))(runtime, value)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a.b", {"a": {"b": 1}}, 1),
        ("missing.b", {}, None),
        ("a[0]", {"a": ["x"]}, "x"),
        ("a[-1]", {"a": ["x", "y"]}, "y"),
        ("a[5]", {"a": ["x"]}, None),
        ("a[:1]", {"a": ["x", "y"]}, ["x"]),
        ("a[1:3]", {"a": "hello"}, "el"),
        ("a[::-1]", {"a": "abc"}, "cba"),
        ("a[*].b", {"a": [{"b": 1}, {}]}, [1]),
        ("a[]", {"a": [[1], 2]}, [1, 2]),
        ("a[?b == 'x'].c", {"a": [{"b": "x", "c": 1}, {"b": "y"}]}, [1]),
        ("a.*", {"a": {"x": 1, "y": None}}, [1]),
        ("[a, b]", None, [None, None]),
        ("{x: a}", {"a": 1}, {"x": 1}),
        ("a && b", {"a": "", "b": 1}, ""),
        ("a || b", {"a": "", "b": 1}, 1),
        ("!a", {"a": 0}, False),
        ("a | b", {"a": {"b": 1}}, 1),
        ("a + b", {"a": 1, "b": 2}, 3.0),
        ("a - `1`", {"a": 1}, 0.0),
        ("a * `2`", {"a": 3}, 6.0),
        ("a / `2`", {"a": 3}, 1.5),
        ("a // `2`", {"a": -3}, -2.0),
        ("a % `2`", {"a": -3}, -1.0),
        ("a / `0`", {"a": -1}, -math.inf),
        ("-a", {"a": 1}, -1.0),
        ("a + b", {"a": 1, "b": "x"}, None),
        ("a > `2`", {"a": 3}, True),
        ("a > 'x'", {"a": 3}, None),
        ("a == `3`", {"a": 3}, False),
        ("a == `3`", {"a": 3.0}, True),
        ("let $x = a in b[?@ == $x]", {"a": 1, "b": [1, 2]}, [1]),
        ("let $x = a, $y = b in $x + $y", {"a": 1, "b": 2}, 3.0),
        ("let $v = 'in' in let $v = 'deep' in $v", {}, "deep"),
        ("$v", {}, "out"),
        ("$", {"a": 1}, None),
        ("length(a)", {"a": "abc"}, 3.0),
        ("map(&(@ + `1`), a)", {"a": [1, 2]}, [2.0, 3.0]),
        ("find_first(a, 'l')", {"a": "hello"}, 2.0),
        ("find_last(a, 'l', `0`, `3`)", {"a": "hello"}, 2.0),
        ("find_first(a, 'z')", {"a": "hello"}, None),
        ("pad_left(a, `5`, '0')", {"a": "12"}, "00012"),
        ("pad_right(a, `4`)", {"a": "12"}, "12  "),
        ("trim_left(a)", {"a": "  x "}, "x "),
        ("trim_right(a, 'x')", {"a": "axx"}, "a"),
        ("upper(a)", {"a": "x"}, "X"),
        ("lower(a)", {"a": "X"}, "x"),
        ("zip(a, b)", {"a": [1, 2], "b": [3]}, [[1, 3]]),
        ("from_items(a)", {"a": [["x", 1]]}, {"x": 1}),
        ("group_by(a, &k)", {"a": [{"k": "x"}]}, {"x": [{"k": "x"}]}),
        ("concat(a, 'y')", {"a": "x"}, "xy"),
        ("json_parse(a)", {"a": "[1]"}, [1.0]),
        ("wildcard('a*', a)", {"a": "abc"}, True),
        ("at(a, $i)", {"a": ["x", "y"]}, "y"),
        ("to_upper(a)", {"a": "x"}, "X"),
        ("sum(a)", {"a": [1.0, 2.0]}, 3.0),
    ],
)
def test_expression_equals_upstreams_result(
    text: str, value: Any, expected: Any
) -> None:
    """A wrong value would make a rule pass or fail wrongly."""
    assert run(text, value, {"$v": "out", "$i": GoInt(1)}) == expected


@pytest.mark.parametrize(
    ("text", "value", "message"),
    [
        ("nope(a)", {}, "unknown function: nope"),
        ("md5(a)", {"a": ""}, "unknown function: md5"),
        (
            "length()",
            {},
            (
                "invalid arity, the function 'length' expects 1 argument but none were "
                "supplied"
            ),
        ),
        (
            "starts_with(a)",
            {"a": ""},
            (
                "invalid arity, the function 'starts_with' expects 2 arguments but "
                "1 were "
                "supplied"
            ),
        ),
        (
            "length(a, a)",
            {"a": ""},
            (
                "invalid arity, the function 'length' expects at most 1 arguments "
                "but 2 "
                "were supplied"
            ),
        ),
        (
            "abs(a)",
            {"a": 1},
            'invalid type for: 1, expected: []functions.JpType{"number"}',
        ),
        (
            "length(a)",
            {"a": None},
            (
                'invalid type for: <nil>, expected: []functions.JpType{"string", '
                '"array", '
                '"object"}'
            ),
        ),
        ("$none", {}, "variable not defined: $none"),
        ("a[::0]", {"a": []}, "invalid slice, step cannot be 0"),
        ("at(a, `0`)", {"a": []}, "invalid type, second argument must be an int"),
        (
            "pad_left(a, `-1`)",
            {"a": ""},
            (
                "invalid value, the function 'pad_left' expects its 'width' "
                "argument to be "
                "a an integer value greater than or equal to zero."
            ),
        ),
    ],
)
def test_error_has_upstreams_text(text: str, value: Any, message: str) -> None:
    """The text follows ``Internal error:`` in the rule's message."""
    with pytest.raises(ExpressionFailed) as caught:
        run(text, value, {})
    assert caught.value.message == message
