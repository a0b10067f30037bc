"""Test queries: missing keys, number modes, upstream quirks, the community dialect."""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.jmespath.functions.calls import catalogue
from kyverno_mp.expr.jmespath.interim import UnknownKey
from kyverno_mp.expr.jmespath.link import Query, link
from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json


def runtime(*, ints: bool = False) -> Runtime:
    return Runtime(
        now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        monotonic_ns=lambda: 0,
        ints_are_numbers=ints,
    )


def run(text: str, value: Json, *, ints: bool = False) -> Json:
    return search(text)(runtime(ints=ints), value)


@pytest.mark.parametrize("text", ["m", "a.m", "a.m[0].x", "a && a.m", "m.[a]"])
def test_missing_key_is_an_error(text: str) -> None:
    with pytest.raises(UnknownKey, match='Unknown key "m" in path'):
        run(text, {"a": {"b": 1}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.m | @", None),
        ("a.m || 'd'", "d"),
        ("m && a", None),
        ("!m", True),
        ("m == `null`", True),
        ("[m]", [None]),
        ("{k: m}", {"k": None}),
        ("m[].x", None),
        ("m[?x]", None),
        ("m.*", None),
        ("l[*].m", []),
        ("not_null(m, 'd')", "d"),
        ("a.b.c", None),
        ("l[9]", None),
    ],
)
def test_missing_key_is_absorbed(text: str, expected: Json) -> None:
    assert run(text, {"a": {"b": None}, "l": [{}, {"x": 1}]}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "map(&@, l)[]",
        "map(&@, l)[].a",
        "map(&@, l)[?a]",
        "map(&@, l).*",
        "sort_by(p, &length(q[*]))",
    ],
)
@pytest.mark.parametrize("dialect", [link, link_dialect])
def test_exhausted_budget_is_never_absorbed(
    text: str, dialect: Callable[[Node], Query]
) -> None:
    """Otherwise, functions that return null on errors would hide excessive cost."""
    given = runtime()
    given.steps_left = 30
    long = [1.0] * 100
    with pytest.raises(BudgetExceeded):
        dialect(parse(text))(given, {"l": long, "p": [{"q": [1.0]}, {"q": long}]})


def test_ints_are_numbers_only_on_admission() -> None:
    value = {"n": 3, "l": [1, {"x": 2}], "s": "x"}
    assert run("n > `2`", value) is None
    assert run("n > `2`", value, ints=True) is True
    assert run("n == `3`", value) is False
    assert run("n == `3`", value, ints=True) is True
    result = run("@", value, ints=True)
    assert result == value
    assert [type(result["n"]), type(result["l"][0])] == [float, float]
    assert type(run("n", value)) is int
    assert value == {"n": 3, "l": [1, {"x": 2}], "s": "x"}


def test_bool_is_never_a_number() -> None:
    assert run("t == `1`", {"t": True}, ints=True) is False
    assert run("t > `0`", {"t": True}, ints=True) is None


def test_compare_gives_a_go_int() -> None:
    assert run("compare('a', 'a')", None) == 0
    assert type(run("compare('a', 'a')", None)) is int
    assert run("compare('a', 'a') == `0`", None, ints=True) is False


def test_items_is_not_a_generic_list() -> None:
    assert run("items(@, 'k', 'v')[*].k", {"b": 1, "a": 2}) == ["a", "b"]
    with pytest.raises(ExpressionFailed, match="interface conversion"):
        run("reverse(items(@, 'k', 'v'))", {"b": 1})


def test_value_projection_starts_with_nulls() -> None:
    assert run("*.to_string(@)", {"a": 1, "b": 2}) == ["null", "null", "1", "2"]
    with pytest.raises(ExpressionFailed, match="Invalid type"):
        run("*.length(@)", {"a": "x"})


@pytest.mark.parametrize(
    "text",
    [
        "contains(@, `{}`)",
        "merge(`1`)",
        "@(a)",
    ],
)
def test_panics_of_upstream_are_errors(text: str) -> None:
    with pytest.raises(ExpressionFailed):
        run(text, [{}])


@pytest.mark.parametrize(
    ("text", "function", "number", "value"),
    [
        ("time_add('2021-01-02T15:04:05-07:00', `3`)", "time_add", 2, "3"),
        ("length(`null`)", "length", 1, "<nil>"),
        ("split(`[]`, ',')", "split", 1, "[]"),
        ("split('a', `1`)", "split", 2, "1"),
        ("replace('a', 'b', `true`, `1`)", "replace", 3, "true"),
        ("to_upper(`1`)", "to_upper", 1, "1"),
    ],
)
def test_errors_of_arguments_name_function_and_argument(
    text: str, function: str, number: int, value: str
) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        run(text, {})
    start = f"JMESPath function '{function}': argument #{number}: Invalid type for: "
    assert caught.value.message.startswith(f"{start}{value}, expected: ")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('label_match(`{"a": {"b": "c"}}`, `{"a": {"b": "c"}}`)', True),
        ('label_match(`{"a": {"b": "c"}}`, `{"a": {"b": "d"}}`)', False),
        ('label_match(`{"a": ["b", 1]}`, `{"a": ["b", 1], "x": 2}`)', True),
        ('label_match(`{"a": []}`, `{"a": {}}`)', False),
    ],
)
def test_label_match_compares_deeply(text: str, *, wanted: bool) -> None:
    assert run(text, {}) is wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("add('1m', '1s')", "1m1s"),
        ("add('1s', '1m')", "1m1s"),
        ("subtract('1h', '1m')", "59m0s"),
        ("divide('1h', '30m')", 2),
        ("divide('30m', '1h')", 0.5),
        ("modulo('90s', '1m')", "30s"),
        ("sum(['1m', '1m', '1s'])", "2m1s"),
        ("sum(['500m', '500m', '1h'])", "17h40m0s"),
        # Without another duration, "m" is milli.
        ("add('5m', '5m')", "10m"),
        ("add('500m', '500m')", "1"),
        ("add('1m', '1')", "1001m"),
        ("multiply('1m', `2`)", "2m"),
        ("sum(['500m', '500m'])", "1"),
    ],
)
def test_m_is_minutes_beside_a_duration(text: str, wanted: object) -> None:
    assert run(text, {}) == wanted


@pytest.mark.parametrize("text", ["add('1Gi', '1s')", "sum(['1Gi', '1m', '1s'])"])
def test_quantities_are_not_durations(text: str) -> None:
    with pytest.raises(ExpressionFailed, match="Types mismatch"):
        run(text, {})


def test_sort_by_does_not_modify_its_input() -> None:
    value = [{"n": "b"}, {"n": "a"}]
    assert run("sort_by(@, &n)", value) == [{"n": "a"}, {"n": "b"}]
    assert value == [{"n": "b"}, {"n": "a"}]


@pytest.mark.parametrize(
    ("text", "bindings", "expected"),
    [
        ("a + b * `2`", {}, 7.0),
        ("a // `2` - b % `2`", {}, -1.0),
        ("let $x = a, $y = b in [$x, $y]", {}, [1, 3]),
        ("$outer.k", {"$outer": {"k": "v"}}, "v"),
        ("c.d.e", {}, None),
        ("l[*].{r: $.a}", {}, [{"r": None}]),
        ("a < b", {}, True),
        ("'abc'[1:]", {}, "bc"),
        ("-a", {}, -1.0),
        ("concat('a', 'b')", {}, "ab"),
    ],
)
def test_community_dialect(
    text: str, bindings: dict[str, Json], expected: Json
) -> None:
    env = runtime()
    env.bindings = bindings
    value = {"a": 1, "b": 3, "c": {}, "l": [1]}
    assert link_dialect(parse(text, community=True))(env, value) == expected
    assert env.bindings is bindings


def test_unbound_variable() -> None:
    with pytest.raises(ExpressionFailed, match=r"variable not defined: \$x"):
        link_dialect(parse("$x", community=True))(runtime(), {})


def test_community_syntax_is_rejected_in_the_plain_dialect() -> None:
    for text in ("a + b", "$x", "let $a = b in a"):
        with pytest.raises(ExpressionInvalid):
            parse(text)


def test_nodes_survive_a_snapshot() -> None:
    node = parse("a.b[?c == `1`].{d: e[0], f: [g, length(h)]} | sort_by(@, &x) || !y")
    data = msgspec.msgpack.encode(node)
    assert msgspec.msgpack.decode(data, type=Node) == node


def test_catalogue_is_sorted_by_signature() -> None:
    rows = catalogue()
    assert [row.signature for row in rows] == sorted(row.signature for row in rows)
    by_name = {row.name: row for row in rows}
    assert by_name["lookup"].signature == "lookup(object|array, string|number) any"
    assert by_name["time_now"].signature == "time_now() string"
