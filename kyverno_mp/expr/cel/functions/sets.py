"""Sets: lists taken as sets.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: catalogue.py.
May touch: nothing outside its arguments. Source: cel-go ext/sets.go; spec/cel.md 11.
"""

from kyverno_mp.expr.cel.library import function
from kyverno_mp.expr.cel.operators import equal
from kyverno_mp.expr.cel.values import Meter, Value


def _within(meter: Meter, item: Value, items: list[Value]) -> bool:
    if item.__class__ is str:
        return item in items
    return any(equal(meter, item, other) for other in items)


def _contains(meter: Meter, items: list[Value], parts: list[Value]) -> bool:
    meter.charge(len(items) * len(parts))
    return all(_within(meter, part, items) for part in parts)


def _equivalent(meter: Meter, left: list[Value], right: list[Value]) -> bool:
    return _contains(meter, left, right) and _contains(meter, right, left)


def _intersects(meter: Meter, left: list[Value], right: list[Value]) -> bool:
    meter.charge(len(left) * len(right))
    return any(_within(meter, item, right) for item in left)


OVERLOADS = (
    function("sets.contains(list(T), list(T)) -> bool", _contains),
    function("sets.equivalent(list(T), list(T)) -> bool", _equivalent),
    function("sets.intersects(list(T), list(T)) -> bool", _intersects),
)
