"""Evaluate label selectors like Kyverno: Kubernetes' rules plus wildcards in labels.

Room: values. Takes: labels and terms of a selector. Gives: the error message of an
invalid selector, and a closure that evaluates a map of labels.
Next: compiler/rules/match (errors), program/matching/match (closures).
Source: docs/behaviour/engine 1.5; Kubernetes apimachinery labels.NewRequirement.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import compile_wildcard, contains_wildcard

Labels: TypeAlias = Mapping[str, str]
Term: TypeAlias = tuple[str, str, tuple[str, ...]]
"""(key, operator, values)."""
LabelTest: TypeAlias = Callable[[Labels], bool]

_NAME_LENGTH_MAX: Final = 63
_PREFIX_LENGTH_MAX: Final = 253
_NAME: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_PREFIX: Final = re.compile(
    r"[a-z0-9]++(?:-++[a-z0-9]++)*+(?:\.[a-z0-9]++(?:-++[a-z0-9]++)*+)*+\Z"
)
_NAME_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
    "'123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, "
    "'-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
    "'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def is_label_key(key: str) -> bool:
    """Return whether ``key`` is a qualified name, e.g. ``app.kubernetes.io/name``."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _PREFIX_LENGTH_MAX or not _PREFIX.match(prefix)):
        return False
    return len(name) <= _NAME_LENGTH_MAX and _NAME.match(name) is not None


def is_label_value(value: str) -> bool:
    """Return whether ``value`` is a valid label value."""
    return not value or (
        len(value) <= _NAME_LENGTH_MAX and _NAME.match(value) is not None
    )


def check_selector(
    labels: Sequence[tuple[str, str]], terms: Sequence[Term] = ()
) -> str:
    """Return Kubernetes' error for an invalid selector; "" if it is valid.

    Labels with wildcards are checked when they are matched with actual labels, not
    here.
    """
    for key, value in labels:
        if contains_wildcard(key) or contains_wildcard(value):
            continue
        error = _check_key(key) or _check_value(key, value, 0)
        if error:
            return error
    for key, operator, values in terms:
        error = _check_term(key, operator, values)
        if error:
            return error
    return ""


def _check_key(key: str) -> str:
    if is_label_key(key):
        return ""
    return f'key: Invalid value: "{key}": {_NAME_RULE}'


def _check_value(key: str, value: str, position: int) -> str:
    if is_label_value(value):
        return ""
    return f'values[{position}][{key}]: Invalid value: "{value}": {_VALUE_RULE}'


def _check_term(key: str, operator: str, values: tuple[str, ...]) -> str:
    if operator not in _OPERATORS:
        return f'"{operator}" is not a valid label selector operator'
    error = _check_key(key)
    if error:
        return error
    if operator in {"In", "NotIn"}:
        if not values:
            return (
                "values: Invalid value: null: for 'in', 'notin' operators, values set "
                "can't be empty"
            )
    elif values:
        quoted = ",".join(f'"{value}"' for value in values)
        return (
            f"values: Invalid value: [{quoted}]: values set must be empty for exists "
            "and does not exist"
        )
    for position, value in enumerate(values):
        error = _check_value(key, value, position)
        if error:
            return error
    return ""


def labels_of(value: Json) -> dict[str, str]:
    """Return a map of labels or annotations as the API decodes it.

    KYVERNO: a single value that is not a string makes the whole map unreadable, so the
    result is empty; null is read as "" (unstructured.NestedNullCoercingStringMap).
    """
    if type(value) is not dict:
        return {}
    has_null = False
    for label in value.values():
        if type(label) is not str:
            if label is not None:
                return {}
            has_null = True
    return {k: v or "" for k, v in value.items()} if has_null else value


def read_selector(
    raw: Mapping[str, Json],
) -> tuple[tuple[tuple[str, str], ...], list[Term]]:
    """Return the labels and terms of a LabelSelector in a document."""
    terms = [
        (
            term.get("key") or "",
            term.get("operator") or "",
            tuple(term.get("values") or ()),
        )
        for term in raw.get("matchExpressions") or ()
    ]
    return tuple((raw.get("matchLabels") or {}).items()), terms


def compile_selector(
    labels: Sequence[tuple[str, str]], terms: Sequence[Term] = ()
) -> LabelTest:
    """Compile a valid selector to a closure that evaluates actual labels.

    An empty selector matches everything.
    """
    tests = [_label_test(key, value) for key, value in labels]
    tests += [_term_test(*term) for term in terms]
    if not tests:
        return lambda _: True
    if len(tests) == 1:
        return tests[0]
    return lambda actual: all(test(actual) for test in tests)


def _label_test(key: str, value: str) -> LabelTest:
    if not (contains_wildcard(key) or contains_wildcard(value)):
        return lambda actual: actual.get(key) == value
    key_matches, value_matches = compile_wildcard(key), compile_wildcard(value)

    def some_label_matches(actual: Labels) -> bool:
        # KYVERNO: a matching label of the object replaces the pair and must then be
        # valid; if no label matches, wildcards become 0 and the pair cannot match
        # (1.5).
        return any(
            key_matches(name)
            and value_matches(value)
            and is_label_key(name)
            and is_label_value(value)
            for name, value in actual.items()
        )

    return some_label_matches


def _term_test(key: str, operator: str, values: tuple[str, ...]) -> LabelTest:
    allowed = frozenset(values)
    if operator == "In":
        return lambda actual: actual.get(key) in allowed
    if operator == "NotIn":
        return lambda actual: actual.get(key) not in allowed
    if operator == "Exists":
        return lambda actual: key in actual
    return lambda actual: key not in actual
