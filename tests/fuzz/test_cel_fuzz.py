"""Our CEL and an independent implementation give the same values.

The other implementation is ``common-expression-language`` (Rust). The generated
expressions type-check here; if both give a value the values must be equal, and if one
fails the other must fail, too. Its known faults are avoided by construction (the size
of a string counts its bytes) or skipped (a loop ends at the first error, although a
later iteration may decide it).
"""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, InputError
from tests.unit.expr_cel.evaluate import compiled, evaluate

other = pytest.importorskip("cel", reason="common-expression-language is not installed")

OBJECT: Any = {
    "n": 3,
    "s": "web",
    "t": True,
    "nil": None,
    "list": [1, 2, 3],
    "names": ["a", "bb", "ccc"],
    "map": {"a": {"b": 1}, "c": {"d": "x"}},
    "items": [{"name": "a", "n": 1}, {"name": "b"}],
}

_INTS = st.sampled_from(
    (
        "0",
        "1",
        "-2",
        "7",
        "object.n",
        "size(object.names)",
        "object.list[0]",
        "object.items[0].n",
        "object.items[1].n",
        "object.nope",
        "object.list[9]",
    )
)
_TEXTS = st.sampled_from(
    (
        "''",
        "'a'",
        "'web'",
        "'z'",
        "object.s",
        "object.names[1]",
        "object.map.c.d",
        "object.map.c.nope",
        "object.items[0].name",
        "object.nil.x",
    )
)
_BOOLS = st.sampled_from(("true", "false", "object.t", "has(object.nope)"))
_PLAIN_BOOLS = st.sampled_from(
    (
        "has(object.map.a)",
        "has(object.map.a.z)",
        "(object.nope == 1)",
        "(object.t == true)",
    )
)


def _ints(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(inner, st.sampled_from("/%"), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(_TEXTS).map(lambda t: f"size({t[0]})"),
    )


_NUMBER = st.recursive(_INTS, _ints, max_leaves=4)
_TEXT = st.one_of(_TEXTS, st.tuples(_TEXTS, _TEXTS).map(lambda t: f"({t[0]} + {t[1]})"))
_SIGNS = st.sampled_from(("==", "!=", "<", "<=", ">", ">="))
_LEAF = st.one_of(
    _BOOLS,
    _PLAIN_BOOLS,
    st.tuples(_NUMBER, _SIGNS, _NUMBER).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    st.tuples(_TEXT, _SIGNS, _TEXT).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    st.tuples(
        _TEXT, st.sampled_from(("contains", "startsWith", "endsWith")), _TEXT
    ).map(lambda t: f"{t[0]}.{t[1]}({t[2]})"),
    _TEXT.map(lambda t: f"({t} in object.names)"),
    _NUMBER.map(lambda t: f"({t} in object.list)"),
)


def _bools(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    loop = st.sampled_from(("all", "exists", "exists_one"))
    return st.one_of(
        st.tuples(inner, st.sampled_from(("&&", "||")), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda t: f"!({t})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})"),
        st.tuples(loop, _SIGNS, _NUMBER, inner).map(
            lambda t: f"object.list.{t[0]}(i, i {t[1]} {t[2]} || {t[3]})"
        ),
        st.tuples(loop, inner).map(
            lambda t: f"object.items.{t[0]}(c, has(c.n) && c.n == 1 && {t[1]})"
        ),
        inner.map(lambda t: f"(object.list.filter(i, i > 1 && {t}).size() == 2)"),
        st.tuples(_NUMBER, inner).map(
            lambda t: f"((object.list.map(i, i + {t[0]}) == [2, 3, 4]) == ({t[1]}))"
        ),
    )


EXPRESSIONS = st.recursive(_LEAF, _bools, max_leaves=6)
_FAILED = object()


def _ours(text: str) -> Any:
    try:
        return evaluate(text, OBJECT)
    except (ExpressionFailed, BudgetExceeded):
        return _FAILED


def _theirs(text: str) -> Any:
    try:
        return other.evaluate(text, {"object": OBJECT, "x": None})
    except Exception:  # noqa: BLE001 - it raises what Python calls the failure
        return _FAILED


@settings(max_examples=400)
@given(EXPRESSIONS)
def test_same_value(text: str) -> None:
    compiled(text)
    ours, theirs = _ours(text), _theirs(text)
    if theirs is _FAILED and (".all(" in text or ".exists(" in text):
        return
    assert (text, ours is _FAILED) == (text, theirs is _FAILED)
    assert ours is _FAILED or (text, ours) == (text, theirs)


_SOUP = st.lists(
    st.sampled_from(
        (
            "object",
            ".",
            "a",
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "?",
            "1",
            "'s'",
            "&&",
            "||",
            "!",
            "-",
            "+",
            "has",
            "all",
            "map",
            "1.5",
            ".?",
            "[?",
            "in",
            "size",
            "==",
            "<",
            "null",
            "true",
            "u",
            '"',
            "'",
            "\\",
            "é",
            "\n",
            "optional",
        )
    ),
    max_size=14,
).map("".join)


@settings(max_examples=400)
@given(st.one_of(_SOUP, st.text(max_size=30)))
def test_any_text_yields_a_value_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        evaluate(text, OBJECT)
