"""Compare JSON values as their JSON text.

Room: values. Takes: two values. Gives: bool. Next: values/patches/json_diff,
strategic_merge, json_patch. ``1`` and ``1.0``
are equal because Go writes both as ``1``; ``1`` and ``true`` differ.
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import Spender

_ABSENT: Final[Json] = object()


def same(first: Json, second: Json) -> bool:
    """Return whether two values are equal.

    PERF: shared parts are recognised by identity, so comparing an object with its
    patched copy costs only as much as the changes.
    """
    if first is second:
        return True
    kind, other_kind = type(first), type(second)
    if kind is not other_kind:
        return (
            (kind is int or kind is float)
            and (other_kind is int or other_kind is float)
            and bool(first == second)
        )
    if kind is dict:
        if len(first) != len(second):
            return False
        for key, item in first.items():
            twin = second.get(key, _ABSENT)
            if twin is not item and (twin is _ABSENT or not same(item, twin)):
                return False
        return True
    if kind is list:
        if len(first) != len(second):
            return False
        for item, twin in zip(first, second, strict=True):
            if item is not twin and not same(item, twin):
                return False
        return True
    return bool(first == second)


def same_paid(first: Json, second: Json, spend: Spender) -> bool:
    """Compare like ``same``, and charge each container before comparing it."""
    if first is second:
        return True
    kind, other_kind = type(first), type(second)
    if kind is not other_kind or (kind is not dict and kind is not list):
        if kind is str:
            spend.charge(1 + (len(first) >> 12))
        return same(first, second)
    if len(first) != len(second):
        return False
    spend.charge(1 + (len(first) >> 1))
    if kind is dict:
        for key, item in first.items():
            twin = second.get(key, _ABSENT)
            if twin is not item and (
                twin is _ABSENT or not same_paid(item, twin, spend)
            ):
                return False
        return True
    for item, twin in zip(first, second, strict=True):
        if item is not twin and not same_paid(item, twin, spend):
            return False
    return True


def whole_numbers(value: Json) -> Json:
    """Convert floats without a fraction to ints, as Go does when it decodes an object.

    If there are no such floats, the same object is returned.
    """
    kind = type(value)
    if kind is float:
        return _whole(value)
    if kind is dict:
        out = value
        for key, item in value.items():
            new = whole_numbers(item)
            if new is not item:
                if out is value:
                    out = value.copy()
                out[key] = new
        return out
    if kind is list:
        out = value
        for index, item in enumerate(value):
            new = whole_numbers(item)
            if new is not item:
                if out is value:
                    out = value.copy()
                out[index] = new
        return out
    return value


_INT64_END = float(1 << 63)


def _whole(value: float) -> int | float:
    if value.is_integer() and -_INT64_END <= value < _INT64_END:
        return int(value)
    return value
