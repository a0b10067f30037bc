"""Test assertion trees: behaviour/engine 6.7 and the messages of kyverno-json."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, PolicyInvalid
from kyverno_mp.expr.assertion.link import Violation, link_assertion
from kyverno_mp.expr.assertion.match import matches
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.assertion.parse import (
    AssertionExpression,
    parse_assertion,
    parse_expression,
)
from kyverno_mp.expr.scope import Runtime


class Entries:
    """A Scope with the given context entries, which records the requested names."""

    def __init__(self, entries: dict[str, Any], steps: int = 10_000) -> None:
        self.root: dict[str, Any] = {"request": {}}
        self.operation = "CREATE"
        self.asked: list[str] = []
        self._entries = entries
        self.runtime = Runtime(
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            monotonic_ns=lambda: 0,
            ints_are_numbers=True,
            steps=steps,
        )

    def ensure(self, query: str) -> None:
        self.asked.append(query)
        if query in self._entries:
            self.root[query] = self._entries[query]


def judge(tree: Any, payload: Any, entries: dict[str, Any] | None = None) -> list[str]:
    program = link_assertion(parse_assertion(tree))
    return [v.message for v in program.evaluate(payload, Entries(entries or {}))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spec", AssertionExpression("spec")),
        ("(spec.a)", AssertionExpression("spec.a", computed=True)),
        ("(jp:spec.a)", AssertionExpression("spec.a", computed=True)),
        ("~.spec", AssertionExpression("spec", each=True)),
        ("~i.(a)", AssertionExpression("a", computed=True, each=True, place="i")),
        ("spec->s", AssertionExpression("spec", binding="s")),
        ("(a)->s", AssertionExpression("a", computed=True, binding="s")),
        ("\\(spec)\\", AssertionExpression("(spec)")),
        ("~.", None),
        ("", None),
    ],
)
def test_key_is_parsed(text: str, expected: AssertionExpression | None) -> None:
    """A wrongly parsed key would assert something else."""
    assert expected == parse_expression(text)


@pytest.mark.parametrize(
    ("tree", "payload"),
    [
        ({"a": {"b": "x"}}, {"a": {"b": "x", "c": 1}}),
        ({"a": 1}, {"a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": {}}, {"a": 0}),
        ({"a": None}, {"a": None}),
        ({"a": ["x", {"b": True}]}, {"a": ["x", {"b": True}]}),
        ({"a": "(@)"}, {"a": "x"}),
        ({"(length(a))": 2}, {"a": [1, 2]}),
        ({"(a.b)": "x"}, {"a": {"b": "x"}}),
        ({"(missing)": None}, {}),
        ({"~.a": {"b": "x"}}, {"a": [{"b": "x"}, {"b": "x"}]}),
        ({"~.a": {"b": "x"}}, {"a": {"k": {"b": "x"}}}),
        ({"a": "x (y)"}, {"a": "x (y)"}),
        ({"\\(a)\\": 1}, {"(a)": 1}),
    ],
)
def test_satisfied_assertion_has_no_violations(tree: Any, payload: Any) -> None:
    """Without violations the rule passes."""
    assert judge(tree, payload) == []


@pytest.mark.parametrize(
    ("tree", "payload", "texts"),
    [
        (
            {"a": {"b": "x"}},
            {"a": {"b": "y"}},
            ['a.b: Invalid value: "y": Expected value: "x"'],
        ),
        ({"a": 3}, {"a": 4}, ["a: Invalid value: 4: Expected value: 3"]),
        (
            {"a": True, "b": None},
            {"a": False, "b": "x"},
            [
                "a: Invalid value: false: Expected value: true",
                'b: Invalid value: "x": Expected value: <nil>',
            ],
        ),
        (
            {"a": {"b": 1}},
            {"a": {}},
            ["a.b: Required value: field not found in the input object"],
        ),
        (
            {"a": {"b": 1}},
            {"a": None},
            ["a.b: Required value: field not found in the input object"],
        ),
        (
            {"a": {}},
            {"a": None},
            ["a: Invalid value: null: invalid value, must not be null"],
        ),
        (
            {"a": [1]},
            {"a": ["x", {"b": 2}]},
            ['a: Invalid value: ["x",{"b":2}]: lengths of slices don\'t match'],
        ),
        ({"a": [1]}, {"a": None}, ["a: Invalid value: null: value is null"]),
        (
            {"a": [1, 2]},
            {"a": [1, 3]},
            ["a[1]: Invalid value: 3: Expected value: 2"],
        ),
        (
            {"~.a": {"b": "x"}},
            {"a": [{"b": "x"}, {"b": "z"}]},
            ['~.a[1].b: Invalid value: "z": Expected value: "x"'],
        ),
        (
            {"~.a": 1},
            {"a": {"k": 2}},
            ["~.a[k]: Invalid value: 2: Expected value: 1"],
        ),
        (
            {"(a == 'x')": True},
            {"a": "y"},
            ["(a == 'x'): Invalid value: false: Expected value: true"],
        ),
        (
            {"a": "(['x', `1`])"},
            {"a": ["x", 2]},
            [
                ('a: Invalid value: ["x",2]: Expected value: []interface {}{"x", 1}'),
            ],
        ),
    ],
)
def test_violation_names_path_and_actual_and_expected_value(
    tree: Any, payload: Any, texts: list[str]
) -> None:
    """Each violation is a separate result, with the text of a field error."""
    assert judge(tree, payload) == texts


@pytest.mark.parametrize(
    ("tree", "payload", "text"),
    [
        (
            {"a": "x"},
            {"a": 1},
            "a: Internal error: types are not comparable, string - int64",
        ),
        (
            {"a": True},
            {"a": "x"},
            "a: Internal error: types are not comparable, bool - string",
        ),
        ({"a": {"b": 1}}, {"a": "x"}, "a.b: Internal error: projection not recognized"),
        ({"a": [1]}, {"a": "x"}, 'a: Invalid value: "x": expected a slice'),
        ({"~.a": 1}, {"a": "x"}, '~.a: Invalid value: "x": expected a slice or a map'),
        (
            {"a": "(x)->c"},
            {"a": {"x": 1}},
            'a: Invalid value: "(x)->c": binding is not supported on the RHS',
        ),
        (
            {"a": "~i.(x)"},
            {"a": 1},
            'a: Invalid value: "~i.(x)": foreach is not supported on the RHS',
        ),
        (
            {"($none)": 1},
            {},
            "($none): Internal error: variable not defined: $none",
        ),
        (
            {"($request)": 1},
            {},
            "($request): Internal error: variable not defined: $request",
        ),
        ({"(length(a))": 1}, {"a": None}, None),
        ({"(a..b)": 1}, {}, None),
    ],
)
def test_uncomparable_values_are_an_error(
    tree: Any, payload: Any, text: str | None
) -> None:
    """An error is neither a pass nor a violation."""
    with pytest.raises(ExpressionFailed) as caught:
        judge(tree, payload)
    if text is None:
        head = f"{next(iter(tree))}: Internal error: "
        assert caught.value.message.startswith(head)
    else:
        assert caught.value.message == text


def test_context_entries_are_loaded_lazily() -> None:
    """An entry that calls the API must not run if the tree does not use it."""
    scope = Entries({"size": "big", "other": 1})
    program = link_assertion(parse_assertion({"a": {"(@ == $size)": True}}))
    assert program.evaluate({"a": "big"}, scope) == []
    assert scope.asked == ["size"]


def test_bindings_are_visible_to_following_members() -> None:
    """``->name`` and the index of an iteration are available as ``$name``."""
    tree = {"spec->s": {"x": "($s.y)"}, "~i.items": {"(@ > $i)": True}}
    payload = {"spec": {"x": 1, "y": 1}, "items": [1, 1]}
    assert judge(tree, payload) == [
        "~i.items[1].(@ > $i): Invalid value: false: Expected value: true"
    ]


def test_integers_of_the_payload_are_int64() -> None:
    """Payload integers never equal a float, but arithmetic and ordering accept them."""
    payload = {"a": 3}
    assert (
        judge({"(a == `3`)": False, "(a > `2`)": True, "(a + `1`)": 4}, payload) == []
    )


def test_the_budget_is_shared_with_the_rule() -> None:
    """A tree has the same limit as other expressions."""
    scope = Entries({}, steps=5)
    program = link_assertion(parse_assertion({"~.a": {"b": 1}}))
    with pytest.raises(BudgetExceeded):
        program.evaluate({"a": [{"b": 1}] * 10}, scope)
    assert scope.runtime.steps_left < 0


def test_deeply_nested_tree_is_rejected() -> None:
    """Deep nesting must be a policy error, not an interpreter error."""
    tree: Any = 1
    for _ in range(200):
        tree = {"a": tree}
    with pytest.raises(PolicyInvalid):
        parse_assertion(tree)


def test_an_assertion_survives_a_snapshot() -> None:
    """Workers decode assertions from a snapshot, never from the policy."""
    assertion = parse_assertion({"a": [1, "(b)", None]})
    encoded = msgspec.msgpack.encode(assertion)
    assert msgspec.msgpack.decode(encoded, type=Assertion) == assertion


def test_violations_name_their_path() -> None:
    """Reports group violations by path."""
    program = link_assertion(parse_assertion({"a": {"b": 1}}))
    assert program.evaluate({"a": {"b": 2}}, Entries({})) == [
        Violation("a.b", "a.b: Invalid value: 2: Expected value: 1")
    ]


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ({"a": 1.0}, {"a": 1, "b": 2}, True),
        ({"a": 1.0}, {"b": 2}, False),
        ([1.0], [1.0, 2.0], False),
        (None, None, True),
        (None, "", False),
        ("x", None, False),
    ],
)
def test_expected_values_are_compared_deeply(
    expected: Any, actual: Any, *, same: bool
) -> None:
    """A map asserts only its own keys."""
    assert matches(expected, actual, Entries({}).runtime) is same


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "a", "$k"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    ["a", "b", "~.a", "~k.b", "a->k", "(a)->k", "(@)", "($k)", "(a[0])", "(a + b)", "("]
)
_TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["a", "(a)", "()"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(_TREES, _JSON)
def test_any_tree_returns_or_raises_a_known_error(tree: Any, payload: Any) -> None:
    """A tree or a payload must never crash a worker."""
    with contextlib.suppress(ExpressionFailed):
        assert all(": " in text for text in judge(tree, payload))
