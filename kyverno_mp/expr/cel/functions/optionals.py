"""Implement optional values.

Room: expr. Takes: Meter and values. Gives: OVERLOADS; ``or`` and ``orValue``, whose
argument is evaluated only when needed, are linked in expr/cel/linking/optional.py.
Next: expr/cel/catalogue.py. Source: cel-go
cel/library.go, optionals.
"""

from typing import Final

from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import (
    NO_VALUE,
    POINTER_BYTES,
    CelFailed,
    Duration,
    Meter,
    Optional,
    Timestamp,
    Uint,
    Value,
)

_ZERO_TIME_NS = -62135596800 * 10**9
_ITEM_COST: Final = 2


def _of(_meter: Meter, value: Value) -> Optional:
    return Optional(value)


def _is_zero(value: Value) -> bool:
    kind = value.__class__
    if kind is Duration:
        return bool(value.ns == 0)
    if kind is Timestamp:
        return bool(value.ns == _ZERO_TIME_NS)
    return kind in _ZEROERS and not value


_ZEROERS = frozenset({type(None), bool, int, Uint, float, str, bytes, list, dict})


def _of_non_zero(_meter: Meter, value: Value) -> Optional:
    return NO_VALUE if _is_zero(value) else Optional(value)


def _value(_meter: Meter, optional: Optional) -> Value:
    if not optional.present:
        raise CelFailed("optional.none() dereference")
    return optional.value


def _first(_meter: Meter, items: list[Value]) -> Optional:
    return Optional(items[0]) if items else NO_VALUE


def _last(_meter: Meter, items: list[Value]) -> Optional:
    return Optional(items[-1]) if items else NO_VALUE


def _unwrap(meter: Meter, items: list[Value]) -> list[Value]:
    """Return the values of all optionals that have a value."""
    meter.charge(_ITEM_COST * len(items))
    meter.charge_bytes(POINTER_BYTES * len(items))
    for item in items:
        if item.__class__ is not Optional:
            raise CelFailed("value is not optional")
    return [item.value for item in items if item.present]


OVERLOADS = (
    function("optional.of(V) -> optional_type(V)", _of),
    function("optional.ofNonZeroValue(V) -> optional_type(V)", _of_non_zero),
    function("optional.none() -> optional_type(V)", lambda _m: NO_VALUE),
    member("value(optional_type(V)) -> V", _value),
    member("hasValue(optional_type(V)) -> bool", lambda _m, o: o.present),
    member("or(optional_type(V), optional_type(V)) -> optional_type(V)"),
    member("orValue(optional_type(V), V) -> V"),
    member("first(list(V)) -> optional_type(V)", _first),
    member("last(list(V)) -> optional_type(V)", _last),
    function("optional.unwrap(list(optional_type(V))) -> list(V)", _unwrap),
    member("unwrapOpt(list(optional_type(V))) -> list(V)", _unwrap),
)
