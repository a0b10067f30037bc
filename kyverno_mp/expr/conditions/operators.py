"""Look up the operator of a condition by name.

Room: expr. Takes: an operator's name. Gives: a comparison of two values, or a test of
keys compiled for one value. Next: expr/conditions/link.
May touch: nothing outside its arguments. Source: docs/behaviour/engine 4.2.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.expr.conditions.equality import equals, link_equality, not_equals
from kyverno_mp.expr.conditions.membership import MODES, is_member, link_membership
from kyverno_mp.expr.conditions.membership_exact import is_in
from kyverno_mp.expr.conditions.ordering import (
    COMPARATORS,
    compare_durations,
    compare_numbers,
)
from kyverno_mp.values.jsonvalue import Json

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
        return lambda key, value: is_in(key, value, negated=negated)
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
