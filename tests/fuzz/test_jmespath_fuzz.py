"""Any text parses or is rejected; any expression ends with a value or a known error."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO
from kyverno_mp.expr.jmespath.link import link
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.gotext import json_text, sprint
from kyverno_mp.values.jsonvalue import Json

NAMES = ["a", "b", "foo", '"x y"', "request"]
LITERALS = [
    "`1`",
    "`-2.5`",
    "'text'",
    "`null`",
    "`[1,[2]]`",
    '`{"a":1}`',
    "'1Gi'",
    "'5s'",
]
ALPHABET = "abfo \t\n.*[]{}()?:,@&|!<>=-0123456789\"'`\\$+/%éß"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "foo", "x y"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}.{}".format, inner, st.sampled_from(NAMES)),
        st.builds("{}[{}]".format, inner, st.integers(-3, 3)),
        st.builds("{}[{}:{}:{}]".format, inner, *[st.integers(-2, 2)] * 3),
        st.builds("{}[].{}".format, inner, st.sampled_from(NAMES)),
        st.builds("{}[*].{}".format, inner, st.sampled_from(NAMES)),
        st.builds("{}.*".format, inner),
        st.builds("{}[?{}]".format, inner, inner),
        st.builds("({} {} {})".format, inner, OPERATORS, inner),
        st.builds("!{}".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{k: {}, l: {}}}".format, inner, inner),
        st.builds(
            "{}({})".format,
            st.sampled_from(sorted(KYVERNO)),
            st.lists(inner | inner.map("&{}".format), max_size=4).map(", ".join),
        ),
    )


OPERATORS = st.sampled_from(["||", "&&", "|", "==", "!=", "<", ">="])
expressions = st.recursive(
    st.sampled_from(["@", *NAMES, *LITERALS]), deeper, max_leaves=8
)


def runtime(*, ints_are_numbers: bool = False) -> Runtime:
    return Runtime(
        now=lambda: datetime(2026, 1, 2, tzinfo=UTC),
        monotonic_ns=time.monotonic_ns,
        ints_are_numbers=ints_are_numbers,
        random_bytes=lambda count: b"\x05" * count,
        steps=100_000,
        bytes_max=1_000_000,
    )


@settings(max_examples=400)
@given(st.text(ALPHABET, max_size=60) | st.text(max_size=30), st.booleans())
def test_any_text_parses_or_is_rejected(text: str, community: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    try:
        node = parse(text, community=community)
    except ExpressionInvalid:
        return
    try:
        (link_dialect if community else link)(node)(runtime(), {"a": [1, {"b": "c"}]})
    except ExpressionFailed:
        return


@settings(max_examples=600)
@given(expressions, json_values, st.booleans())
def test_any_expression_terminates(text: str, value: Json, ints: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    try:
        result = link(parse(text))(runtime(ints_are_numbers=ints), value)
        sprint(result)
        json_text(result)
    except (ExpressionInvalid, ExpressionFailed):
        return


@pytest.mark.parametrize(
    "text",
    [
        "| ".join(["join('', [@, @])"] * 60),
        "| ".join(["[@, @]"] * 60),
        "| ".join(["[@, @]"] * 60) + "| to_string(@)",
        "| ".join(["[@, @][]"] * 60),
        "| ".join(["[@, @]"] * 60) + "| abs(@)",
        "| ".join(["[@, @]"] * 60) + "| [0] == [1]",
        "| ".join(["{a: @, b: @}"] * 60),
        "| ".join(["replace_all(@, 'x', 'xx')"] * 60),
        "| ".join(["regex_replace_all('x', @, '$0$0')"] * 60),
        "| ".join(["[@, @]"] * 60) + "| items(@, 'k', 'v')",
        "random('" + ".*" * 300 + "')",
    ],
)
@pytest.mark.parametrize("ints", [False, True])
def test_bomb_exhausts_its_budget(text: str, ints: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A small expression must not use exponential time or memory."""
    started = time.monotonic()
    with pytest.raises(BudgetExceeded):
        link(parse(text))(runtime(ints_are_numbers=ints), "xx")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "a" + ")" * 5000,
        "a" + ".a" * 5000,
        "!" * 5000 + "a",
        "[" * 9000,
        "a" * 70_000,
    ],
)
def test_deep_or_long_text_is_rejected(text: str) -> None:
    with pytest.raises(ExpressionInvalid):
        parse(text)
