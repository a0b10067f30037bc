"""Implement functions of plain numbers.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
Source: docs/behaviour/engine 9.1, 9.2 (round).
"""

import math
from typing import Final

from kyverno_mp.expr.jmespath.functions.entry import (
    ANY,
    NUMBER,
    NUMBERS,
    FunctionEntry,
    function_error,
)
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.duration import float_to_int64
from kyverno_mp.values.go.gofloat import parse_float
from kyverno_mp.values.jsonvalue import Json

_WHOLE_FROM: Final = 4503599627370496.0
"""2**52: larger floats have no fraction."""


def _abs(_runtime: Runtime, value: float) -> Json:
    return abs(value)


def _ceil(_runtime: Runtime, value: float) -> Json:
    return float(math.ceil(value)) if math.isfinite(value) else value


def _floor(_runtime: Runtime, value: float) -> Json:
    return float(math.floor(value)) if math.isfinite(value) else value


def _avg(runtime: Runtime, values: list[float]) -> Json:
    runtime.charge(len(values) // 4)
    total = 0.0
    for value in values:
        total += value
    # KYVERNO: 9.1 - the mean of an empty list is NaN, which fails when it is printed.
    return total / len(values) if values else math.nan


def _to_number(runtime: Runtime, value: Json) -> Json:
    kind = type(value)
    if kind is float:
        return value
    if kind is str:
        runtime.charge_made(4 * len(value), value)
        return parse_float(value)
    if kind is int and runtime.ints_are_numbers:
        return float(value)
    if kind in (list, dict, bool) or value is None:
        return None
    raise fail("unknown type")


def _round(_runtime: Runtime, value: float, length: float) -> Json:
    digits = float_to_int64(length)
    if length != digits:
        raise function_error("round", "Non-integer argument(s) passed for round off")
    if digits < 0:
        # KYVERNO: 9.2 - upstream formats this text without its arguments.
        raise function_error(
            "round", "%!d(MISSING) argument is out of bounds (%!d(MISSING))"
        )
    try:
        shift = math.pow(10.0, digits)
    except OverflowError:
        shift = math.inf
    if math.isinf(shift):
        return math.nan
    return _half_away(value * shift) / shift


def _half_away(value: float) -> float:
    if not math.isfinite(value) or abs(value) >= _WHOLE_FROM:
        return value
    integer = math.trunc(value)
    if abs(value - integer) >= 0.5:  # noqa: PLR2004 - one half
        integer += 1 if value > 0 else -1
    return math.copysign(float(integer), value)


STANDARD: Final = (
    FunctionEntry("abs", (NUMBER,), _abs),
    FunctionEntry("avg", (NUMBERS,), _avg),
    FunctionEntry("ceil", (NUMBER,), _ceil),
    FunctionEntry("floor", (NUMBER,), _floor),
    FunctionEntry("to_number", (ANY,), _to_number),
)
FUNCTIONS: Final = (
    FunctionEntry(
        "round",
        (NUMBER, NUMBER),
        _round,
        NUMBER,
        "does roundoff to upto the given decimal places",
    ),
)
