"""Our JMESPath and the ``jmespath`` library give the same on any expression.

go_dialect.py adapts the library to the differences of Kyverno's fork (with a reason for
each). There are no other exceptions: values are equal, a key is missing in both, and
both fail on the same expressions. Texts are generated without regard to precedence, so
both parsers must agree on it; random tokens compare the rejections.
"""

import json
from typing import Any

import jmespath
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.jmespath.parse import parse
from tests.unit.expr_jmespath.go_dialect import dialect, equal
from tests.unit.expr_jmespath.test_standard import ours

_KEYS = st.sampled_from(["a", "b", "c", "x y"])
_NUMBERS = st.sampled_from([0, 1, -1, 2, 0.5, -2.5, 10])
_TEXTS = st.sampled_from(["", "a", "ab", "b", "1", "-0.5", "<&>", "\u00e9", "1e2"])
_SCALARS = st.none() | st.booleans() | _NUMBERS | _TEXTS
DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4)
    ),
    max_leaves=14,
)
_ROWS = st.lists(
    st.fixed_dictionaries({"a": _SCALARS}, optional={"b": DOCUMENTS, "c": _NUMBERS}),
    max_size=4,
)
_LISTS = st.lists(_NUMBERS, max_size=4) | st.lists(_TEXTS, max_size=4) | _ROWS
_MAPS = st.dictionaries(_KEYS, DOCUMENTS | _LISTS, min_size=1, max_size=3)
_ROOTS = DOCUMENTS | _LISTS | _MAPS | _MAPS

_NAMES = st.sampled_from(["a", "b", "c", '"x y"'])
_LITERALS = (_SCALARS | _LISTS).map(lambda v: f"`{json.dumps(v)}`") | st.sampled_from(
    ["'a'", "'ab'", "'1'", "''"]
)
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(".".join)
_ATOMS = st.one_of(st.just("@"), _PATHS, _PATHS, _LITERALS)
_OPERATORS = st.sampled_from(
    ["||", "&&", "|", "==", "!=", "<", "<=", ">", ">=", " . ", "."]
)
_BOUNDS = st.none() | st.integers(-4, 4)
_ONE = ("abs", "avg", "ceil", "floor", "keys", "length", "max", "min", "reverse")
_ALSO_ONE = ("sort", "to_array", "to_number", "to_string", "type", "values")
_TWO = ("contains", "ends_with", "join", "starts_with", "merge", "not_null")
_BY = ("max_by", "min_by", "sort_by")


def _slice(start: int | None, stop: int | None, step: int | None) -> str:
    return ":".join("" if part is None else str(part) for part in (start, stop, step))


def _deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    follow = st.one_of(
        _NAMES.map(".{}".format),
        st.integers(-3, 3).map("[{}]".format),
        st.builds(_slice, _BOUNDS, _BOUNDS, _BOUNDS).map("[{}]".format),
        st.sampled_from(["[]", "[*]", ".*"]),
        inner.map("[?{}]".format),
        inner.map(".[{}]".format),
        st.builds(".{{k: {}, l: {}}}".format, inner, inner),
    )
    return st.one_of(
        st.builds("{}{}".format, inner, follow),
        st.builds("{}{}{}".format, inner, follow, follow),
        st.builds("({}){}".format, inner, follow),
        st.builds("{}{}{}".format, inner, _OPERATORS, inner),
        st.builds("({} {} {})".format, inner, _OPERATORS, inner),
        st.builds("!{}".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{k: {}}}".format, inner),
        st.builds("{}({})".format, st.sampled_from(_ONE + _ALSO_ONE), inner),
        st.builds("{}({}, {})".format, st.sampled_from(_TWO), inner, inner),
        st.builds("{}({}, &{})".format, st.sampled_from(_BY), inner, inner),
        st.builds("map(&{}, {})".format, inner, inner),
    )


EXPRESSIONS = st.recursive(_ATOMS, _deeper, max_leaves=7)


def _read_by(reader: Any, text: str) -> bool:
    try:
        reader(text)
    except (jmespath.exceptions.JMESPathError, ExpressionInvalid):
        return False
    return True


@settings(max_examples=1500)
@given(EXPRESSIONS, _ROOTS)
@example("a.*.length(@)", {"a": {"b": "x"}})
@example("merge({k: @}, @)", [])
@example("a[?b.c > `0`].b.c | sort(@)", {"a": [{"b": {"c": 2}}, {"b": {"c": 1}}]})
def test_same_outcome(text: str, document: Any) -> None:
    read = _read_by(jmespath.compile, text)
    assert _read_by(parse, text) == read
    assume(read)
    expected, found = dialect(text, document), ours(text, document)
    assert equal(found, expected), (found, expected)


_TOKENS = (
    *("a", "b", "@", ".", ".", "*", "[", "]", "[]", "[?", "]", "(", ")", "{", "}"),
    *(":", ",", "|", "||", "&", "&&", "!", "==", "!=", "<", "<=", ">", ">=", "=", "#"),
    *("`1`", "`[1]`", "'x'", '"a"', "0", "1", "-1", "[*]", "[0]", "[1:]"),
    *("length(", "sort_by(", "a:"),
)
_SOUP = st.builds(
    lambda glue, tokens: glue.join(tokens),
    st.sampled_from(["", " ", "\n"]),
    st.lists(st.sampled_from(_TOKENS), min_size=1, max_size=9),
)


@settings(max_examples=1500)
@given(_SOUP, _ROOTS)
def test_same_texts_are_rejected(text: str, document: Any) -> None:
    if _read_by(jmespath.compile, text):
        assert _read_by(parse, text)
        # The value of a reference outside of a call is not specified.
        assume("&" not in text.replace("&&", ""))
        assert equal(ours(text, document), dialect(text, document))
    elif _read_by(parse, text):
        # PARSED_ONLY_HERE: a call without a name.
        assert "(" in text
