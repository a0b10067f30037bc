"""Implement the math extension, with Kyverno's two-argument ``math.round``.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: cel-go ext/math.go; docs/behaviour/cel 11, 12.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from kyverno_mp.expr.cel.library import Declaration, function
from kyverno_mp.expr.cel.operators import compare, divide_double, int_result
from kyverno_mp.expr.cel.values import UINT_MAX, CelFailed, Meter, Uint, Value
from kyverno_mp.values.go.duration import wrap_int64

_BITS: Final = 64
_PLACES_MAX: Final = 308
"""The exponent of the largest power of ten that a double can represent."""
_COMPARED_COST: Final = 14
_COST: Final = 25
_KINDS: Final = ("int", "uint", "double")
_NUMBERS: Final = frozenset({int, Uint, float})


def _of_list(name: str, sign: int) -> Callable[..., Value]:
    def run(meter: Meter, items: list[Value]) -> Value:
        if not items:
            raise CelFailed(f"{name}(list) argument must not be empty")
        meter.charge(_COMPARED_COST * len(items))
        best = items[0]
        try:
            for item in islice(items, 1, None):
                if compare(item, best) == sign:
                    best = item
        except CelFailed:
            best = None
        if best.__class__ not in _NUMBERS:
            raise CelFailed(f"no such overload: {name}")
        return best

    return run


def _of_pair(name: str, sign: int) -> Callable[..., Value]:
    def run(_meter: Meter, first: Value, second: Value) -> Value:
        try:
            return second if compare(second, first) == sign else first
        except CelFailed as error:
            raise CelFailed(f"{error.message}: {name}") from None

    return run


def _extremes() -> Iterator[Declaration]:
    """Yield the functions that the macros ``math.least`` and ``math.greatest`` call."""
    for name, sign in (("math.@min", -1), ("math.@max", 1)):
        pair, items = _of_pair(name, sign), _of_list(name, sign)
        for first in _KINDS:
            yield function(f"{name}({first}) -> {first}", lambda _m, v: v, cost=_COST)
            signature = f"{name}(list({first})) -> {first}"
            yield function(signature, items, cost=_COST)
            for second in _KINDS:
                result = first if first == second else "dyn"
                signature = f"{name}({first}, {second}) -> {result}"
                yield function(signature, pair, cost=_COST)


def _whole(value: float, rounded: Callable[[float], int]) -> float:
    return (
        value
        if math.isnan(value) or math.isinf(value)
        else math.copysign(float(rounded(value)), value)
    )


def _half_away(value: float) -> int:
    size = abs(value)
    floor = math.floor(size)
    rounded = floor + 1 if size - floor >= 0.5 else floor  # noqa: PLR2004 - a half
    return -rounded if value < 0 else rounded


def _round_to(meter: Meter, value: float, places: int) -> float:
    """Round to decimal places. KYVERNO: cel 12 - overflow results in NaN, as in Go."""
    # No double has 400 digits.
    scale = math.inf if places > _PLACES_MAX else 10.0 ** max(places, -400)
    return divide_double(meter, _whole(value * scale, _half_away), scale)


def _abs_int(_meter: Meter, value: int) -> int:
    return int_result(abs(value))


def _sign(_meter: Meter, value: Value) -> Value:
    if value.__class__ is float:
        if math.isnan(value):
            return value
        return float((value > 0) - (value < 0))
    sign = (value > 0) - (value < 0)
    return Uint(sign) if value.__class__ is Uint else sign


def _square_root(_meter: Meter, value: Value) -> float:
    number = float(value)
    return math.sqrt(number) if number >= 0 else math.nan


def _unsigned(operation: Callable[[int, int], int]) -> Callable[..., Value]:
    return lambda _m, left, right: Uint(operation(int(left), int(right)))


def _shifted(value: Value, offset: int, name: str, *, left: bool) -> Value:
    if offset < 0:
        raise CelFailed(f"math.{name}() negative offset: {offset}")
    is_uint = value.__class__ is Uint
    if offset >= _BITS:
        return Uint(0) if is_uint else 0
    bits = int(value) & UINT_MAX
    moved = (bits << offset) & UINT_MAX if left else bits >> offset
    return Uint(moved) if is_uint else wrap_int64(moved)


def _left(_meter: Meter, value: Value, offset: int) -> Value:
    return _shifted(value, offset, "bitShiftLeft", left=True)


def _right(_meter: Meter, value: Value, offset: int) -> Value:
    return _shifted(value, offset, "bitShiftRight", left=False)


OVERLOADS = (
    *_extremes(),
    function(
        "math.ceil(double) -> double", lambda _m, v: _whole(v, math.ceil), cost=_COST
    ),
    function(
        "math.floor(double) -> double", lambda _m, v: _whole(v, math.floor), cost=_COST
    ),
    function(
        "math.round(double) -> double", lambda _m, v: _whole(v, _half_away), cost=_COST
    ),
    function("math.round(double, int) -> double", _round_to, cost=_COST),
    function(
        "math.trunc(double) -> double", lambda _m, v: _whole(v, math.trunc), cost=_COST
    ),
    function("math.abs(double) -> double", lambda _m, v: abs(v), cost=_COST),
    function("math.abs(int) -> int", _abs_int, cost=_COST),
    function("math.abs(uint) -> uint", lambda _m, v: v, cost=_COST),
    function("math.sign(double) -> double", _sign, cost=_COST),
    function("math.sign(int) -> int", _sign, cost=_COST),
    function("math.sign(uint) -> uint", _sign, cost=_COST),
    function("math.isNaN(double) -> bool", lambda _m, v: math.isnan(v), cost=_COST),
    function("math.isInf(double) -> bool", lambda _m, v: math.isinf(v), cost=_COST),
    function(
        "math.isFinite(double) -> bool", lambda _m, v: math.isfinite(v), cost=_COST
    ),
    function("math.bitAnd(int, int) -> int", lambda _m, a, b: a & b, cost=_COST),
    function(
        "math.bitAnd(uint, uint) -> uint", _unsigned(lambda a, b: a & b), cost=_COST
    ),
    function("math.bitOr(int, int) -> int", lambda _m, a, b: a | b, cost=_COST),
    function(
        "math.bitOr(uint, uint) -> uint", _unsigned(lambda a, b: a | b), cost=_COST
    ),
    function("math.bitXor(int, int) -> int", lambda _m, a, b: a ^ b, cost=_COST),
    function(
        "math.bitXor(uint, uint) -> uint", _unsigned(lambda a, b: a ^ b), cost=_COST
    ),
    function("math.bitNot(int) -> int", lambda _m, v: ~v, cost=_COST),
    function(
        "math.bitNot(uint) -> uint", lambda _m, v: Uint(UINT_MAX ^ int(v)), cost=_COST
    ),
    function("math.bitShiftLeft(int, int) -> int", _left, cost=_COST),
    function("math.bitShiftLeft(uint, int) -> uint", _left, cost=_COST),
    function("math.bitShiftRight(int, int) -> int", _right, cost=_COST),
    function("math.bitShiftRight(uint, int) -> uint", _right, cost=_COST),
    function("math.sqrt(double) -> double", _square_root, cost=_COST),
    function("math.sqrt(int) -> double", _square_root, cost=_COST),
    function("math.sqrt(uint) -> double", _square_root, cost=_COST),
)
