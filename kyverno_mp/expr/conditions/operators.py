"""Look up the operator of a condition by name.

Room: expr. Takes: an operator's name. Gives: a comparison of two values, or a test of
keys compiled for one value. Next: expr/conditions/link.
Source: docs/behaviour/engine 4.2,
4.7 (In, NotIn).
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.conditions.equality import equals, link_equality, not_equals
from kyverno_mp.expr.conditions.membership import (
    MODES,
    is_member,
    json_strings,
    link_membership,
    scalar_text,
)
from kyverno_mp.expr.conditions.ordering import (
    COMPARATORS,
    compare_durations,
    compare_numbers,
)
from kyverno_mp.values.go.gotext import go_type
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_IN = MODES["AnyIn"]


def _is_in(key: Json, value: Json, *, negated: bool) -> bool:
    """Return whether key is In (or NotIn) value.

    Raises: ExpressionFailed for a list key with elements that are not strings, where
    upstream panics.
    """
    if type(key) is list:
        return _list_in(key, value, negated=negated)
    printed = scalar_text(key)
    if printed is None:
        return False
    if type(value) is list:
        return is_member(_IN, printed, value) is not negated
    if type(value) is not str:
        return False
    if matches(value, printed):
        return not negated
    strings = json_strings(value)
    return strings is not None and (printed in strings) is not negated


def _list_in(keys: list[Json], value: Json, *, negated: bool) -> bool:
    for key in keys:
        if type(key) is not str:
            raise ExpressionFailed(
                "conditions.key_type",
                "interface conversion: interface {} is"
                f" {'nil' if key is None else go_type(key)}, not string",
            )
    if type(value) is list:
        if not all(type(item) is str for item in value):
            return False
        return _subset(keys, value) is not negated
    if type(value) is not str:
        return False
    if len(keys) == 1 and keys[0] == value:
        # KYVERNO: this is true for NotIn, too (docs/behaviour/engine 4.7).
        return True
    strings = json_strings(value)
    return strings is not None and _subset(keys, strings) is not negated


def _subset(keys: list[Json], values: list[Json]) -> bool:
    return set(keys) <= set(values)


Compare = Callable[[Json, Json], bool]
Test = Callable[[Json], bool]

OPERATORS: Final = (
    "Equal",
    "Equals",
    "NotEqual",
    "NotEquals",
    "In",
    "AnyIn",
    "AllIn",
    "NotIn",
    "AnyNotIn",
    "AllNotIn",
    *COMPARATORS,
    *(f"Duration{name}" for name in COMPARATORS),
)
"""The operator names of policies, in the spelling that policy admission requires."""

_BY_LOWER: Final = {name.lower(): name for name in OPERATORS}
_DURATION: Final = "Duration"


def comparison(operator: str) -> Compare | None:
    """Return the comparison of key and value, or None for an unknown operator."""
    name = _BY_LOWER.get(operator.lower())
    if name is None:
        return None
    if name in MODES:
        mode = MODES[name]
        return lambda key, value: is_member(mode, key, value)
    if name in {"In", "NotIn"}:
        negated = name == "NotIn"
        return lambda key, value: _is_in(key, value, negated=negated)
    if name.startswith("Equal"):
        return equals
    if name.startswith("NotEqual"):
        return not_equals
    return _ordering(operator, name)


def prepared(operator: str, value: Json) -> Test | None:
    """Return a test of keys for a constant value; None if the operator is unknown."""
    name = _BY_LOWER.get(operator.lower())
    if name in MODES:
        return link_membership(MODES[name], value)
    if name is not None and name.endswith(("Equal", "Equals")) and "Than" not in name:
        return link_equality(value, negated=name.startswith("Not"))
    compare = comparison(operator)
    if compare is None:
        return None
    general = compare
    return lambda key: general(key, value)


def _ordering(operator: str, name: str) -> Compare:
    if operator != name:
        # KYVERNO: the look-up ignores case, but the comparison works only with the
        # original spelling (docs/behaviour/engine 4.2).
        return lambda _key, _value: False
    if name.startswith(_DURATION):
        duration = COMPARATORS[name.removeprefix(_DURATION)]
        return lambda key, value: compare_durations(duration, key, value)
    number = COMPARATORS[name]
    return lambda key, value: compare_numbers(number, key, value)
