"""Implement Kubernetes quantities.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
May touch: a bounded cache of parsed quantities.
Source: k8s apiserver/pkg/cel/library/quantity.go; docs/behaviour/cel 11.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value
from kyverno_mp.values.kubernetes.quantity import (
    Quantity,
    parse_quantity,
    quantity_error,
)

_COST: Final = 250
"""Quantities have up to a few thousand digits, so an operation takes ten
microseconds."""
_PARSED_MAX: Final = 1024
_TEXT_MAX: Final = 64
_parsed = lru_cache(maxsize=_PARSED_MAX)(parse_quantity)
"""PERF: cached, because a cluster uses the same few quantities again and again."""


def _quantity(meter: Meter, string: str) -> Quantity:
    meter.charge(len(string))
    quantity = _parsed(string) if len(string) <= _TEXT_MAX else parse_quantity(string)
    if quantity is None:
        raise CelFailed(quantity_error(string))
    return quantity


def _is_quantity(meter: Meter, string: str) -> bool:
    meter.charge(len(string))
    return parse_quantity(string) is not None


def _as_integer(_meter: Meter, value: Quantity) -> int:
    integer = value.as_int64()
    if integer is None:
        raise CelFailed("cannot convert value to integer")
    return integer


def _computed(operation: Callable[[Quantity, Quantity], Quantity]) -> Value:
    def run(_meter: Meter, quantity: Quantity, right: Value) -> Quantity:
        if type(right) is not Quantity:
            right = Quantity(int(right), 0, "DecimalSI")
        try:
            return operation(quantity, right)
        except ExpressionFailed as error:
            raise CelFailed(error.message) from error

    return run


_ADD = _computed(lambda a, b: a + b)
_SUB = _computed(lambda a, b: a - b)

OVERLOADS = (
    function("quantity(string) -> Quantity", _quantity, cost=_COST),
    function("isQuantity(string) -> bool", _is_quantity, cost=_COST),
    function(
        "sign(Quantity) -> int", lambda _m, q: (q.unscaled > 0) - (q.unscaled < 0)
    ),
    member(
        "isInteger(Quantity) -> bool",
        lambda _m, q: q.as_int64() is not None,
        cost=_COST,
    ),
    member("asInteger(Quantity) -> int", _as_integer, cost=_COST),
    member(
        "asApproximateFloat(Quantity) -> double",
        lambda _m, q: q.approximate(),
        cost=_COST,
    ),
    member("add(Quantity, Quantity) -> Quantity", _ADD, cost=_COST),
    member("add(Quantity, int) -> Quantity", _ADD, cost=_COST),
    member("sub(Quantity, Quantity) -> Quantity", _SUB, cost=_COST),
    member("sub(Quantity, int) -> Quantity", _SUB, cost=_COST),
    member(
        "isLessThan(Quantity, Quantity) -> bool", lambda _m, a, b: a < b, cost=_COST
    ),
    member(
        "isGreaterThan(Quantity, Quantity) -> bool", lambda _m, a, b: a > b, cost=_COST
    ),
    member(
        "compareTo(Quantity, Quantity) -> int",
        lambda _m, a, b: a.compare(b),
        cost=_COST,
    ),
)
