"""Implement Equals and NotEquals.

Room: expr. Takes: a key and a value. Gives: bool, or a test compiled for one value.
Next: expr/conditions/operators.
Source: docs/behaviour/engine 4.3-4.5.
"""

from collections.abc import Callable

from kyverno_mp.expr.conditions.numbers import (
    as_amounts,
    as_durations,
    duration_text_ns,
    parse_float,
    parse_int,
)
from kyverno_mp.values.go.duration import float_to_int64
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity
from kyverno_mp.values.wildcard import compile_wildcard, contains_wildcard, matches


def equals(key: Json, value: Json) -> bool:
    """Return whether key Equals value; any type is allowed on either side."""
    kind = type(key)
    if kind is str:
        return _text_equals(key, value)
    if kind is bool:
        return type(value) is bool and key == value
    if kind is int:
        return _int_equals(key, value)
    if kind is float:
        return _float_equals(key, value)
    if kind is dict or kind is list:
        return same_data(key, value)
    return False


def not_equals(key: Json, value: Json) -> bool:
    """Return whether key NotEquals value: the negation of Equals, but false for null.

    As in 1.19; in 1.18, some unequal pairs are not NotEquals either.
    """
    return key is not None and not equals(key, value)


def link_equality(value: Json, *, negated: bool) -> Callable[[Json], bool]:
    """Compile Equals or NotEquals for a value known at link time."""
    if type(value) is str and duration_text_ns(value) is None:
        return _link_text(value, negated=negated)
    if negated:
        return lambda key: not_equals(key, value)
    return lambda key: equals(key, value)


def same_data(key: Json, value: Json) -> bool:
    """Return whether two JSON values are equal, including the types of numbers."""
    kind = type(key)
    if kind is not type(value):
        return False
    if kind is list:
        return len(key) == len(value) and all(map(same_data, key, value))
    if kind is dict:
        return key.keys() == value.keys() and all(
            same_data(item, value[name]) for name, item in key.items()
        )
    return bool(key == value)


def _link_text(value: str, *, negated: bool) -> Callable[[Json], bool]:
    """Compile the test for a string that is not a duration."""
    general = not_equals if negated else equals
    quantity = parse_quantity(value)
    plain = not contains_wildcard(value)
    match = compile_wildcard(value)

    def test(key: Json) -> bool:
        if type(key) is not str:
            return general(key, value)
        amount = parse_quantity(key)
        if amount is not None:
            if quantity is None:
                return negated
            return (amount == quantity) is not negated
        if plain:
            return (key == value) is not negated
        return match(key) is not negated

    return test


def _text_equals(key: str, value: Json) -> bool:
    durations = as_durations(key, value)
    if durations is not None:
        return durations[0] == durations[1]
    if type(value) is not str:
        amounts = as_amounts(key, value)
        return amounts is not None and amounts[0] == amounts[1]
    quantity = parse_quantity(key)
    if quantity is not None:
        value_quantity = parse_quantity(value)
        return value_quantity is not None and quantity == value_quantity
    return matches(value, key)


def _int_equals(key: int, value: Json) -> bool:
    kind = type(value)
    if kind is int:
        return bool(key == value)
    if kind is float:
        return value.is_integer() and float_to_int64(value) == key
    if kind is str:
        return parse_int(value) == key
    return False


def _float_equals(key: float, value: Json) -> bool:
    kind = type(value)
    if kind is int:
        return key.is_integer() and float_to_int64(key) == value
    if kind is float:
        return bool(key == value)
    if kind is str:
        return parse_float(value) == key
    return False
