"""Implement the sets extension, which treats lists as sets.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: cel-go ext/sets.go;
docs/behaviour/cel 11.
"""

from typing import Final

from kyverno_mp.expr.cel.library import function
from kyverno_mp.expr.cel.operators import is_among
from kyverno_mp.expr.cel.values import Meter, Value

_PART_COST: Final = 10


def _contains(meter: Meter, items: list[Value], parts: list[Value]) -> bool:
    meter.charge(_PART_COST * len(parts))
    return all(is_among(meter, part, items) for part in parts)


def _equivalent(meter: Meter, left: list[Value], right: list[Value]) -> bool:
    return _contains(meter, left, right) and _contains(meter, right, left)


def _intersects(meter: Meter, left: list[Value], right: list[Value]) -> bool:
    meter.charge(_PART_COST * len(left))
    return any(is_among(meter, item, right) for item in left)


OVERLOADS = (
    function("sets.contains(list(T), list(T)) -> bool", _contains),
    function("sets.equivalent(list(T), list(T)) -> bool", _equivalent),
    function("sets.intersects(list(T), list(T)) -> bool", _intersects),
)
