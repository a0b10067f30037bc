"""Implement the deprecated operators In and NotIn.

Room: expr. Takes: a key and a value. Gives: bool. Next: expr/conditions/operators.
May touch: nothing outside its arguments. Source: docs/behaviour/engine 4.7.
"""

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.conditions.membership import (
    MODES,
    is_member,
    json_strings,
    scalar_text,
)
from kyverno_mp.values.go.gotext import go_type
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_IN = MODES["AnyIn"]


def is_in(key: Json, value: Json, *, negated: bool) -> bool:
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
