"""Test compile errors, and the types of valid expressions."""

import pytest

from kyverno_mp.errors import ExpressionInvalid
from tests.unit.expr_cel.evaluate import compiled


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("object.spec.hostNetwork", "dyn"),
        ("object.spec.hostNetwork == true", "bool"),
        ("has(object.spec)", "bool"),
        ("[1, 2]", "list(int)"),
        ("[]", "list(dyn)"),
        ("[[], [1]]", "list(list(int))"),
        ("{'a': [1.0]}", "map(string, list(double))"),
        ("object.?a.?b", "optional_type(dyn)"),
        ("object.?a.orValue([])", "dyn"),
        ("quantity('1')", "kubernetes.Quantity"),
        ("timestamp('2025-01-02T15:30:00Z') - timestamp(0)", "duration"),
        ("true ? 1 : 2", "int"),
        ("object.a.map(i, i.name)", "list(dyn)"),
        ("[1].map(i, string(i))", "list(string)"),
        ("null", "null"),
        ("type(1)", "type(int)"),
    ],
)
def test_type(text: str, found: str) -> None:
    assert found == compiled(text)[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "foo == 1",
            ("ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n"
            " | foo == 1\n | ^"),
        ),
        (
            "1 + 'a'",
            ("ERROR: <input>:1:3: found no matching overload for '_+_' applied to"
            " '(int, string)'\n | 1 + 'a'\n | ..^"),
        ),
        (
            "'a'.foo()",
            ("ERROR: <input>:1:8: undeclared reference to 'foo' (in container '')\n"
            " | 'a'.foo()\n | .......^"),
        ),
        (
            "'a'.startsWith(1)",
            ("ERROR: <input>:1:15: found no matching overload for 'startsWith' applied"
            " to 'string.(int)'\n | 'a'.startsWith(1)\n | ..............^"),
        ),
        (
            "[1, 'a']",
            ("ERROR: <input>:1:5: expected type 'int' but found 'string'\n"
            " | [1, 'a']\n | ....^"),
        ),
        (
            "duration('7d') > duration('1h')",
            ("ERROR: <input>:1:10: invalid duration argument\n"
            " | duration('7d') > duration('1h')\n | .........^"),
        ),
        (
            "1.all(i, true)",
            None,
        ),
        (
            "'a'.all(i, true)",
            ("ERROR: <input>:1:1: expression of type 'string' cannot be range of a"
            " comprehension (must be list, map, or dynamic)\n"
            " | 'a'.all(i, true)\n | ^"),
        ),
        ("'a'.b", ("ERROR: <input>:1:4: type 'string' does not support field"
         " selection\n"
         " | 'a'.b\n | ...^")),
        ("1 == null", None),
        ("'a' == null", None),
        ("{'a': 1} == null", None),
        ("Object{a: 1}", None),
        ("'a'.matches('(')", None),
        ("timestamp('x') == timestamp(0)", None),
    ],
)  # fmt: skip
def test_rejected(text: str, message: str | None) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        compiled(text)
    if message is not None:
        assert message == caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "(1",
        "[1",
        "{1",
        "'a",
        "'\n'",
        "a b",
        "1u8",
        "9223372036854775808",
        "18446744073709551616u",
        "if",
        "a.?",
        "has(a)",
        "[1].all(1, true)",
        "[1].all(i, i, true)",
        "'\\ud800'",
        "a ? b",
        "@",
        "!-a",
    ],
)
def test_syntax(text: str) -> None:
    with pytest.raises(ExpressionInvalid):
        compiled(text)


def test_format_accepts_a_list_of_any_types() -> None:
    assert compiled("'%s %d'.format(['a', 1])")[1] == "string"


def test_opaque_values_may_be_null() -> None:
    assert compiled("quantity('1') == null && duration('1h') != null")[1] == "bool"
