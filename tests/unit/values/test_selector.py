"""Test label selectors: the rules of Kubernetes, plus wildcards (engine 1.5)."""

import pytest

from kyverno_mp.values.kubernetes.selector import (
    Term,
    check_selector,
    compile_selector,
    labels_of,
)

LABELS = {"app": "web", "env": "prod", "app.kubernetes.io/name": "shop"}


@pytest.mark.parametrize(
    ("labels", "terms", "expected"),
    [
        ([], [], True),
        ([("app", "web")], [], True),
        ([("app", "db")], [], False),
        ([("app", "web"), ("env", "test")], [], False),
        ([("app", "w*")], [], True),
        ([("a*", "w?b")], [], True),
        ([("app.kubernetes.io/*", "?*")], [], True),
        ([("nope*", "*")], [], False),
        ([], [("env", "In", ("prod", "test"))], True),
        ([], [("env", "In", ("test",))], False),
        ([], [("none", "In", ("test",))], False),
        ([], [("env", "NotIn", ("test",))], True),
        ([], [("none", "NotIn", ("test",))], True),
        ([], [("env", "NotIn", ("prod",))], False),
        ([], [("env", "Exists", ())], True),
        ([], [("none", "Exists", ())], False),
        ([], [("none", "DoesNotExist", ())], True),
        ([], [("env", "DoesNotExist", ())], False),
        ([], [("env", "In", ("pr*",))], False),
    ],
)
def test_selector(
    labels: list[tuple[str, str]], terms: list[Term], *, expected: bool
) -> None:
    """A wrong result would apply the policy to the wrong objects."""
    assert expected is compile_selector(labels, terms)(LABELS)


def test_wildcards_expand_only_to_valid_labels() -> None:
    """The matching pair replaces the pattern, and Kubernetes then parses it."""
    test = compile_selector([("a*", "*")])
    assert test({"app": "ok"})
    assert not test({"app": "not a label value"})
    assert not test({"a pp": "ok"})


@pytest.mark.parametrize(
    ("labels", "terms", "expected"),
    [
        ([("app", "web")], [], ""),
        ([("a b", "c")], [], 'key: Invalid value: "a b"'),
        ([("app", "-x")], [], 'values[0][app]: Invalid value: "-x"'),
        ([("a *", "- ?")], [], ""),
        ([], [("env", "Has", ())], '"Has" is not a valid label selector operator'),
        ([], [("env", "In", ())], "values: Invalid value: null: for 'in', 'notin'"),
        ([], [("env", "Exists", ("x",))], 'values: Invalid value: ["x"]: values set'),
        ([("x" * 64, "")], [], "key: Invalid value"),
        ([("Bad_Prefix/x", "")], [], "key: Invalid value"),
        ([("/x", "")], [], "key: Invalid value"),
    ],
)
def test_check_selector(
    labels: list[tuple[str, str]], terms: list[Term], expected: str
) -> None:
    """A selector that does not parse matches nothing, even in exclude."""
    error = check_selector(labels, terms)
    assert error.startswith(expected)
    assert bool(expected) is bool(error)


def test_labels_with_one_invalid_value_are_all_ignored() -> None:
    """NestedStringMap returns nothing if one value is not a string."""
    assert labels_of({"a": "b", "c": 1}) == {}
    assert labels_of(None) == {}
    assert labels_of({"a": "b"}) == {"a": "b"}
