"""Implement comparison and arithmetic of CEL values.

Room: expr. Takes: a Meter and values. Gives: values; CelFailed with cel-go's messages.
Next: expr/cel/linking/expressions.py, catalogue.py, functions/.
Source: the CEL language definition; docs/behaviour/cel 12c.
"""

import math
from collections.abc import Callable
from typing import Final

from kyverno_mp.expr.cel.refusals import no_key, no_order
from kyverno_mp.expr.cel.values import (
    INT_MAX,
    INT_MIN,
    LIST_BYTES,
    POINTER_BYTES,
    UINT_MAX,
    WIDE_BYTES,
    CelFailed,
    Duration,
    Meter,
    Optional,
    Record,
    Timestamp,
    Uint,
    Value,
    over_budget,
    type_name,
)
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX
from kyverno_mp.values.go.gotext import float_g, sprint

_SAME: Final = frozenset({str, int, float, bool, bytes, type(None), Uint})
_NUMBERS: Final = frozenset({int, Uint, float})
_WALK_COST: Final = 20
_ITEM_COST: Final = 4
_SHORT: Final = 64
"""Comparing strings of up to this length takes no measurable time."""
_ORDERED: Final = frozenset({str, bool, bytes, Timestamp, Duration})
_TIMESTAMP_MIN: Final = -62135596800 * 10**9
_TIMESTAMP_MAX: Final = 253402300799 * 10**9 + 999_999_999


def equal(meter: Meter, value: Value, right: Value, depth: int = 0) -> bool:
    """Return whether two values are equal; values of different types are not."""
    kind, right_kind = value.__class__, right.__class__
    if kind is right_kind and kind in _SAME:
        if kind is str and len(value) > _SHORT and len(value) == len(right):
            meter.charge_text(len(value))
        return bool(value == right)
    if kind in _NUMBERS:
        if kind is float or right_kind is float:
            # cel-go compares a whole number with a double as doubles.
            return right_kind in _NUMBERS and float(value) == float(right)
        return right_kind in _NUMBERS and bool(value == right)
    if kind is not right_kind:
        return False
    if kind is list:
        return len(value) == len(right) and _all_equal(meter, value, right, depth)
    if kind is dict:
        return len(value) == len(right) and _maps_equal(meter, value, right, depth)
    if kind is Optional:
        if not (value.present and right.present):
            return bool(value.present == right.present)
        return equal(meter, value.value, right.value, depth + 1)
    if isinstance(value, Record):
        return value.equals(meter, right, depth)
    return bool(value == right)


def _all_equal(meter: Meter, left: list[Value], right: list[Value], depth: int) -> bool:
    _descend(meter, _ITEM_COST * len(left), depth)
    return all(equal(meter, a, b, depth + 1) for a, b in zip(left, right, strict=True))


def _maps_equal(
    meter: Meter, left: dict[Value, Value], right: dict[Value, Value], depth: int
) -> bool:
    _descend(meter, 2 * _ITEM_COST * len(left), depth)
    for key, value in left.items():
        if not has_key(right, key) or not equal(meter, value, right[key], depth + 1):
            return False
    return True


def _descend(meter: Meter, size: int, depth: int) -> None:
    # Walking two containers takes microseconds, regardless of their content.
    meter.charge(_WALK_COST + size)
    if depth > CEL_VALUE_DEPTH_MAX:
        raise over_budget()


def has_key(mapping: dict[Value, Value], key: Value) -> bool:
    """Return whether a map has a key; numbers match by value, unlike bools."""
    kind = key.__class__
    if kind is str:
        return key in mapping
    if kind in _NUMBERS or kind is bool:
        if key not in mapping:
            return False
        if key in (0, 1):
            # In a Python dict, True equals 1.
            probe = _Probe(key)
            mapping.get(probe)
            return (type(probe.found) is bool) == (kind is bool)
        return True
    raise CelFailed("no such overload")


class _Probe:
    """A key that, in a look-up, records the key of the map that equals it."""

    __slots__ = ("_key", "found")

    def __init__(self, key: Value) -> None:
        self._key = key
        self.found: Value = None

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if other == self._key:
            self.found = other
            return True
        return False


def contains(meter: Meter, needle: Value, haystack: Value) -> bool:
    """Evaluate ``needle in haystack``; a map is searched by its keys."""
    kind = haystack.__class__
    if kind is list:
        return is_among(meter, needle, haystack)
    if kind is dict:
        # No map contains a value that cannot be a key.
        return _may_be_key(needle) and has_key(haystack, needle)
    raise CelFailed("no such overload")


def is_among(meter: Meter, needle: Value, items: list[Value]) -> bool:
    """Return whether an item of a list equals a value."""
    if needle.__class__ is str and len(needle) <= _SHORT:
        # PERF: in Python, too, a string can only equal another string.
        meter.charge(len(items))
        return needle in items
    meter.charge(_ITEM_COST * len(items))
    return any(equal(meter, needle, item) for item in items)


def charge_texts(meter: Meter, items: list[Value], times: int = 1) -> None:
    """Charge for reading all strings ``times`` times."""
    if items and (items[0].__class__ is str or items[0].__class__ is bytes):
        meter.charge(len(items))
        size = 0
        for item in items:
            size += len(item) if isinstance(item, str | bytes) else 0
        meter.charge_text(size * times)


def compare(value: Value, right: Value, sign: str = "") -> int:
    """Compare two values: -1, 0 or 1. Raises: CelFailed if they have no order.

    ``sign``: the operator, for the error message.
    """
    kind, right_kind = value.__class__, right.__class__
    if kind in _NUMBERS and right_kind in _NUMBERS:
        if value != value or right != right:  # noqa: PLR0124 - NaN
            raise CelFailed("NaN values cannot be ordered")
        if kind is not right_kind and (kind is float or right_kind is float):
            value, right = float(value), float(right)
    elif kind is not right_kind or kind not in _ORDERED:
        if sign and kind not in _ORDERED and kind not in _NUMBERS:
            raise no_order(sign)
        raise CelFailed("no such overload")
    # Go compares UTF-8 bytes, which yields the order of the code points.
    if value < right:
        return -1
    return 1 if right < value else 0


def int_result(value: int) -> int:
    """Return the value as int64. Raises: CelFailed on overflow."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CelFailed("integer overflow")


def uint_result(value: int) -> Uint:
    """Return the value as uint64. Raises: CelFailed on overflow."""
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise CelFailed("unsigned integer overflow")


def duration_result(ns: int) -> Duration:
    """Return a duration. Raises: CelFailed if its nanoseconds exceed int64."""
    if INT_MIN <= ns <= INT_MAX:
        return Duration(ns)
    raise CelFailed("integer overflow")


def timestamp_result(ns: int, offset_s: int = 0) -> Timestamp:
    """Return a timestamp. Raises: CelFailed outside the years 1 to 9999."""
    if _TIMESTAMP_MIN <= ns <= _TIMESTAMP_MAX:
        return Timestamp(ns, offset_s)
    raise CelFailed("timestamp overflow")


def add_int(_meter: Meter, left: int, right: int) -> int:
    """Add two ints."""
    return int_result(left + right)


def add_text(meter: Meter, left: str, right: str) -> str:
    """Concatenate strings or bytes."""
    if left.__class__ is str and not (left.isascii() and right.isascii()):
        meter.charge_bytes(WIDE_BYTES * (len(left) + len(right)))
    else:
        meter.charge_bytes(LIST_BYTES + len(left) + len(right))
    return left + right


def add_list(meter: Meter, left: list[Value], right: list[Value]) -> list[Value]:
    """Concatenate lists, and charge the copy."""
    meter.charge_bytes(LIST_BYTES + (len(left) + len(right)) * POINTER_BYTES)
    return left + right


def divide_int(_meter: Meter, left: int, right: int) -> int:
    """Divide ints, truncating towards zero."""
    if right == 0:
        raise CelFailed("division by zero")
    size = abs(left) // abs(right)
    return int_result(size if (left < 0) == (right < 0) else -size)


def modulo_int(_meter: Meter, left: int, right: int) -> int:
    """Return the remainder, with the sign of the dividend."""
    if right == 0:
        raise CelFailed("modulus by zero")
    if right == -1:
        int_result(-left)
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def divide_uint(_meter: Meter, left: int, right: int) -> Uint:
    """Divide unsigned integers."""
    if right == 0:
        raise CelFailed("division by zero")
    return Uint(int(left) // int(right))


def modulo_uint(_meter: Meter, left: int, right: int) -> Uint:
    """Return the unsigned remainder."""
    if right == 0:
        raise CelFailed("modulus by zero")
    return Uint(int(left) % int(right))


def divide_double(_meter: Meter, left: float, right: float) -> float:
    """Divide as IEEE 754 does."""
    if right == 0:
        if left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    return left / right


def multiply_double(_meter: Meter, left: float, right: float) -> float:
    """Multiply; Python does not raise on overflow here."""
    return left * right


def index(container: Value, key: Value) -> Value:
    """Evaluate ``container[key]``. Raises: CelFailed with cel-go's text."""
    kind = container.__class__
    if kind is dict and key.__class__ is str:
        # PERF: the usual case needs no further call.
        if key in container:
            return container[key]
        raise CelFailed(f"no such key: {key}")
    check_key(key)
    if kind is dict:
        if has_key(container, key):
            return container[key]
        raise CelFailed(f"no such key: {key_text(key)}")
    if kind is list:
        position = whole_index(key)
        if 0 <= position < len(container):
            return container[position]
        raise CelFailed(f"index out of bounds: {key_text(key)}")
    raise CelFailed(f"no such key: {key_text(key)}")


def check_key(key: Value) -> None:
    """Raise CelFailed for a value that cannot be a key or an index."""
    if not _may_be_key(key):
        raise no_key(key)


def _may_be_key(key: Value) -> bool:
    kind = key.__class__
    return kind is str or kind in _NUMBERS or kind is bool


def whole_index(key: Value) -> int:
    """Return a list index; doubles without a fraction are allowed."""
    kind = key.__class__
    if kind is int:
        return int(key)
    if kind is Uint and key <= INT_MAX:
        return int(key)
    if kind is float or kind is Uint:
        if kind is float and key.is_integer() and INT_MIN <= key <= INT_MAX:
            return int(key)
        raise CelFailed(f"unsupported index value {sprint(key)} in list")
    raise CelFailed(f"unsupported index type '{type_name(key)}' in list")


def key_text(key: Value) -> str:
    """Print a key in the format of cel-go's errors."""
    if type(key) is bool:
        return "true" if key else "false"
    if type(key) is float:
        return float_g(key)
    return str(int(key)) if type(key) is Uint else str(key)


def ordering(sign: str) -> Callable[[Value, Value], bool]:
    """Return the comparison for a sign: ``<``, ``<=``, ``>`` or ``>=``."""
    return {
        "<": lambda left, right: compare(left, right, "<") < 0,
        "<=": lambda left, right: compare(left, right, "<=") <= 0,
        ">": lambda left, right: compare(left, right, ">") > 0,
        ">=": lambda left, right: compare(left, right, ">=") >= 0,
    }[sign]
