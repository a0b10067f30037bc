"""Standard JMESPath: a table of cases, and the differences of Kyverno's fork.

The table follows the JMESPath specification. Each case has three checks: the
``jmespath`` library, the library with the fork's differences, and our parser and
closures must all return the expected value.
"""

import math
from typing import Any

import jmespath
import pytest

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.jmespath.interim import UnknownKey
from kyverno_mp.expr.jmespath.link import link
from kyverno_mp.expr.jmespath.parse import parse
from tests.unit.expr_jmespath.go_dialect import (
    DIFFERENCES,
    FAILED,
    MISSING,
    SWALLOWED,
    Difference,
    dialect,
    equal,
    overrides,
    standard,
)
from tests.unit.expr_jmespath.test_queries import runtime

DOCUMENT: Any = {
    "n": 3,
    "zero": 0,
    "half": -1.5,
    "s": "text",
    "empty": "",
    "nil": None,
    "yes": True,
    "none": {},
    "map": {"a": {"b": {"c": 1}}, "d e": "spaced"},
    "list": [0, 1, 2, 3, 4, 5],
    "names": ["b", "a", "c"],
    "deep": [[1, 2], 3, [[4], []]],
    "pods": [
        {"name": "x", "port": 80, "tags": ["p", "q"]},
        {"name": "y", "port": 443, "tags": []},
        {"name": "z", "port": 80, "tags": None},
    ],
}

CASES: tuple[tuple[str, Any], ...] = (
    # Identifiers and sub-expressions
    ("n", 3),
    ("map.a.b.c", 1),
    ('map."d e"', "spaced"),
    ('"\\u006e"', 3),
    ("s.a", None),
    ("nil.a.b", None),
    ("list.a", None),
    ("map . a\n.\tb.c", 1),
    ("@.n", 3),
    # Indexes and slices
    ("list[0]", 0),
    ("list[-1]", 5),
    ("list[6]", None),
    ("list[-7]", None),
    ("map[0]", None),
    ("s[0]", None),
    ("deep[2][0][0]", 4),
    ("list[1:3]", [1, 2]),
    ("list[:2]", [0, 1]),
    ("list[4:]", [4, 5]),
    ("list[::2]", [0, 2, 4]),
    ("list[::-1]", [5, 4, 3, 2, 1, 0]),
    ("list[-2:]", [4, 5]),
    ("list[10:-10:-2]", [5, 3, 1]),
    ("list[:]", [0, 1, 2, 3, 4, 5]),
    ("list[5:2]", []),
    ("list[::0]", FAILED),
    ("s[1:2]", None),
    ("pods[:2].name", ["x", "y"]),
    # Projections
    ("pods[*].name", ["x", "y", "z"]),
    ("pods[*].tags[0]", ["p"]),
    ("pods[*].tags[]", ["p", "q"]),
    ("pods[*].tags[*]", [["p", "q"], []]),
    ("(pods[*].name)[0]", "x"),
    ("pods[*].name | [0]", "x"),
    ("pods[*].name[0]", []),
    ("map[*]", None),
    ("s[*]", None),
    ("deep[]", [1, 2, 3, [4], []]),
    ("deep[][]", [1, 2, 3, 4]),
    ("map.a.*.c", [1]),
    ("*.a", [{"b": {"c": 1}}]),
    ("list.*", None),
    ("pods[?port == `80`].name", ["x", "z"]),
    ("pods[?port > `80` && tags].name", []),
    ("pods[?port > `80` || tags].name", ["x", "y"]),
    ("pods[?!tags].name", ["y", "z"]),
    ("pods[?tags[0] == 'p'] | [0].name", "x"),
    ("map[?a]", None),
    ("pods[?(port == `80` || name == 'y') && name != 'x'].name", ["y", "z"]),
    # Multi-selects
    ("map.a.[b, b.c]", [{"c": 1}, 1]),
    ("map.{x: a.b.c, \"y z\": 'v'}", {"x": 1, "y z": "v"}),
    ("pods[*].[name, port]", [["x", 80], ["y", 443], ["z", 80]]),
    ("pods[*].{n: name} | [?n == 'y']", [{"n": "y"}]),
    ("nil.[a]", None),
    ("nil.{a: b}", None),
    # Literals
    ("`1`", 1),
    ("`-1.5e1`", -15),
    ('`"a\\`b"`', "a`b"),
    ('`{"a": [null, true]}`', {"a": [None, True]}),
    ("'it\\'s'", "it's"),
    ("'a\\nb'", "a\\nb"),
    ("''", ""),
    # Truth, comparison, logic
    ("empty || 's'", "s"),
    ("zero || 's'", 0),
    ("none || `[]` || `false` || nil", None),
    ("n && s", "text"),
    ("empty && s", ""),
    ("!zero", False),
    ("!none", True),
    ("!!s", True),
    ("n == `3.0`", True),
    ("yes == `1`", False),
    ("s != nil", True),
    ("list[:2] == `[0, 1]`", True),
    ('map.a.b == `{"c": 1}`', True),
    ("n >= `3` && n <= `3` && !(n < `3`) && !(n > `3`)", True),
    ("yes > `0`", None),
    ("n == `3` || n == `4` && nil", True),
    ("nil | @ == `null`", True),
    # Functions
    ("abs(half)", 1.5),
    ("abs(s)", FAILED),
    ("avg(list)", 2.5),
    ("ceil(half)", -1),
    ("floor(half)", -2),
    ("contains(names, 'a')", True),
    ("contains(s, 'ex')", True),
    ("contains(list, `5`)", True),
    ("contains(map, 'a')", FAILED),
    ("ends_with(s, 'xt')", True),
    ("starts_with(s, 'xt')", False),
    ("join('-', names)", "b-a-c"),
    ("join('-', list)", FAILED),
    ("join('-', `[]`)", ""),
    ("sort(keys(map))", ["a", "d e"]),
    ("keys(list)", FAILED),
    ("length('\u00e9\u00e9')", 2),
    ("length(map)", 2),
    ("length(n)", FAILED),
    ("map(&tags, pods)", [["p", "q"], [], None]),
    ("max(list)", 5),
    ("max(names)", "c"),
    ("max(`[]`)", None),
    ('max(`[1, "a"]`)', FAILED),
    ("min(list)", 0),
    ("max_by(pods, &port).name", "y"),
    ("min_by(pods, &port).name", "x"),
    ("max_by(`[]`, &a)", None),
    ("max_by(pods, &tags)", FAILED),
    ('merge(map.a, `{"b": 2}`)', {"b": 2}),
    ("merge(map, nil)", FAILED),
    ("not_null(nil, zero, n)", 0),
    ("not_null(nil)", None),
    ("reverse(names)", ["c", "a", "b"]),
    ("reverse(s)", "txet"),
    ("sort(names)", ["a", "b", "c"]),
    ("sort(`[2, 10, 1]`)", [1, 2, 10]),
    ("sort(`[true, false]`)", FAILED),
    ("sort_by(pods, &port)[*].name", ["x", "z", "y"]),
    ("sort_by(pods, &tags)", FAILED),
    ("sort_by(pods, &not_null(tags[0], port))", FAILED),
    ("to_array(n)", [3]),
    ("to_array(names)", ["b", "a", "c"]),
    ("to_number('1.5')", 1.5),
    ("to_number('x')", None),
    ("to_number(yes)", None),
    ("to_string(list)", "[0,1,2,3,4,5]"),
    ("to_string(s)", "text"),
    ("[type(n), type(s), type(nil), type(yes), type(map), type(list)] | join(' ', @)",
     "number string null boolean object array"),
    ("values(map.a.b)", [1]),
    ("nope(n)", FAILED),
    ("abs()", FAILED),
    ("abs(n, n)", FAILED),
    ("not_null()", FAILED),
)  # fmt: skip

REFUSED = (
    "a.",
    ".a",
    "a..b",
    "a b",
    "a[",
    "a]",
    "[]a",
    "a[0",
    "a[b",
    "a.[",
    "a.{b}",
    "{a:}",
    "{'a': b}",
    "[a,]",
    "a.'b'",
    "a.`1`",
    "a[?]",
    "a[?b",
    "a ||",
    "|| a",
    "a |",
    "a & b",
    "a = b",
    "a == ",
    "!",
    "(a",
    "a)",
    "f(a",
    "f(,)",
    '"f"(a)',
    "'a",
    '"a',
    "`1",
    '"\\x"',
    "a[1:2:3:4]",
    "a[-]",
    "[-]",
    "a-b",
    "1",
    "#",
    "*a",
    "a.*b",
)

PARSED_ONLY_HERE = (
    # The Go parser detects only at run time that the call's name is invalid.
    ("list[0](@)", "a call of what has no name fails when it runs"),
)

REFUSED_ONLY_HERE = (
    # The library reads invalid JSON as a string, as was usual before JEP-12.
    ("`text`", "a literal is JSON"),
    ("`01`", "a literal is JSON"),
)


def ours(expression: str, document: Any) -> Any:
    try:
        return link(parse(expression))(runtime(ints=True), document)
    except UnknownKey:
        return MISSING
    except ExpressionFailed:
        return FAILED


@pytest.mark.parametrize(("expression", "expected"), CASES)
def test_standard(expression: str, expected: Any) -> None:
    for evaluate in (standard, dialect, ours):
        found = evaluate(expression, DOCUMENT)
        assert equal(found, expected), evaluate.__name__


@pytest.mark.parametrize("expression", REFUSED)
def test_rejected(expression: str) -> None:
    with pytest.raises(jmespath.exceptions.ParseError):
        jmespath.compile(expression)
    with pytest.raises(ExpressionInvalid):
        parse(expression)


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.expression)
def test_difference(row: Difference) -> None:
    assert equal(standard(row.expression, row.document), row.standard)
    assert not equal(row.standard, row.dialect)
    assert equal(dialect(row.expression, row.document), row.dialect)
    assert equal(ours(row.expression, row.document), row.dialect)


@pytest.mark.parametrize("expression", SWALLOWED.values())
def test_missing_key_is_null_as_in_the_standard(expression: str) -> None:
    expected = standard(expression, {"n": None, "a": 1})
    assert expected not in (MISSING, FAILED)
    for evaluate in (dialect, ours):
        found = evaluate(expression, {"n": None, "a": 1})
        assert equal(found, expected), evaluate.__name__


def test_oracle_differs_only_in_listed_rows() -> None:
    """An override without a row could hide a defect in our code."""
    rows = {row.overrides for row in DIFFERENCES} | SWALLOWED.keys()
    assert set(overrides()) == rows


@pytest.mark.parametrize(("expression", "_reason"), PARSED_ONLY_HERE)
def test_accepted_only_by_go(expression: str, _reason: str) -> None:
    with pytest.raises(jmespath.exceptions.JMESPathError):
        jmespath.compile(expression)
    assert ours(expression, DOCUMENT) is FAILED


@pytest.mark.filterwarnings("ignore:deprecated string literal syntax")
@pytest.mark.parametrize(("expression", "_reason"), REFUSED_ONLY_HERE)
def test_rejected_only_by_go(expression: str, _reason: str) -> None:
    jmespath.compile(expression)
    with pytest.raises(ExpressionInvalid):
        parse(expression)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0x1p3", 8.0),
        ("0x10", None),
        ("inf", math.inf),
        ("1_0", 10.0),
        ("1_", None),
        ("1e999", None),
        ("+nan", None),
        ("-nan", None),
    ],
)
def test_numbers_are_parsed_like_gos(text: str, expected: float | None) -> None:
    assert ours("to_number(@)", text) == expected
