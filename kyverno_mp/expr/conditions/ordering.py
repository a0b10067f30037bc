"""Implement GreaterThan, LessThan and similar, and the Duration operators.

Room: expr. Takes: a key and a value. Gives: bool. Next: expr/conditions/operators.
Source: docs/behaviour/engine 4.8, 4.9.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

from kyverno_mp.expr.conditions.numbers import (
    as_amounts,
    as_durations,
    parse_float,
    parse_int,
    whole_seconds_ns,
)
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity
from kyverno_mp.values.semver import parse_version

_VERSION_CHARACTERS_MAX: Final = 1000
"""The maximum length; real versions are never longer."""
Comparator = Callable[[Any, Any], bool]

COMPARATORS: Final[dict[str, Comparator]] = {
    "GreaterThan": operator.gt,
    "GreaterThanOrEquals": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEquals": operator.le,
}


def compare_numbers(compare: Comparator, key: Json, value: Json) -> bool:
    """Compare numbers, durations, quantities or versions; false for anything else.

    A list holds if any of its elements does.
    """
    if type(key) is list:
        return any(_compare_scalars(compare, element, value) for element in key)
    return _compare_scalars(compare, key, value)


def _compare_scalars(compare: Comparator, key: Json, value: Json) -> bool:
    kind = type(key)
    if kind is int or kind is float:
        return _compare_number(compare, float(key), key, value)
    if kind is not str:
        return False
    durations = as_durations(key, value)
    if durations is not None:
        return compare(*durations)
    amounts = as_amounts(key, value)
    if amounts is not None:
        return compare(*amounts)
    if type(value) is str:
        left, right = parse_quantity(key), parse_quantity(value)
        if left is not None and right is not None:
            return compare(left.compare(right), 0)
    number = parse_float(key)
    if number is not None:
        return _compare_number(compare, number, number, value)
    if type(value) is not str or max(len(key), len(value)) > _VERSION_CHARACTERS_MAX:
        return False
    version = parse_version(key)
    if version is not None:
        value_version = parse_version(value)
        return value_version is not None and compare(version, value_version)
    return False


def compare_durations(compare: Comparator, key: Json, value: Json) -> bool:
    """Compare two durations; numbers are whole seconds (docs/behaviour/engine 4.9).

    A list holds if any of its elements does.
    """
    right = _duration_ns(value)
    if right is None:
        return False
    durations = map(_duration_ns, key if type(key) is list else (key,))
    return any(left is not None and compare(left, right) for left in durations)


def _compare_number(compare: Comparator, number: float, key: Json, value: Json) -> bool:
    kind = type(value)
    if kind is int or kind is float:
        return compare(number, float(value))
    if kind is not str:
        return False
    durations = as_durations(key, value)
    if durations is not None:
        return compare(*durations)
    amounts = as_amounts(key, value)
    if amounts is not None:
        return compare(*amounts)
    operand: float | None = parse_float(value)
    if operand is None:
        operand = parse_int(value)
    return operand is not None and compare(number, operand)


def _duration_ns(value: Json) -> int | None:
    kind = type(value)
    if kind is str:
        return parse_duration(value)
    if kind is int or kind is float:
        return whole_seconds_ns(value)
    return None
