"""Implement arithmetic of numbers, quantities and durations.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
Source: docs/behaviour/engine 9.3.
"""

from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

from kyverno_mp.expr.jmespath.functions.entry import (
    ANY,
    ARRAY,
    FunctionEntry,
    function_error,
)
from kyverno_mp.expr.jmespath.interim import as_number, fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.duration import (
    duration_text,
    float_to_int64,
    parse_duration,
    wrap_int64,
)
from kyverno_mp.values.go.gotext import float_g
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import (
    Quantity,
    parse_quantity,
    quantity_error,
)

Operand: TypeAlias = float | Quantity | int
"""A scalar, a quantity, or a duration as int nanoseconds."""
_TEXT_STEPS: Final = 16
"""The steps for parsing a quantity or a duration and printing the result."""
_READ_MAX: Final = 500
_SECOND: Final = 1_000_000_000


def _operand(runtime: Runtime, value: Json, function: str) -> Operand:
    number = as_number(runtime, value)
    if number is not None:
        return number
    if type(value) is str:
        runtime.charge(_TEXT_STEPS + 2 * min(len(value), _READ_MAX))
        quantity = parse_quantity(value)
        if quantity is not None:
            return quantity
        duration = parse_duration(value)
        if duration is not None:
            return duration
    raise function_error(function, "invalid operand")


def _pair(
    runtime: Runtime, left: Json, right: Json, function: str
) -> tuple[Operand, Operand]:
    """Return both operands; beside a duration, ``5m`` is minutes instead of milli."""
    first = _operand(runtime, left, function)
    second = _operand(runtime, right, function)
    if type(first) is int:
        return first, _beside_duration(second, right)
    if type(second) is int:
        return _beside_duration(first, left), second
    return first, second


def _beside_duration(operand: Operand, value: Json) -> Operand:
    duration = parse_duration(value) if type(operand) is Quantity else None
    return operand if duration is None else duration


def _mismatch(function: str) -> NoReturn:
    raise function_error(function, "Types mismatch")


def _zero(function: str) -> NoReturn:
    raise function_error(function, "Zero divisor passed")


def _scalar_quantity(value: float) -> Quantity:
    printed = float_g(value)
    quantity = parse_quantity(printed)
    if quantity is None:
        raise fail(quantity_error(printed))
    return quantity


def _seconds(nanoseconds: int) -> float:
    """Convert like Duration.Seconds: whole seconds and fraction separately."""
    sign = -1 if nanoseconds < 0 else 1
    integer, rest = divmod(abs(nanoseconds), _SECOND)
    return sign * (float(integer) + float(rest) / 1e9)


def _duration_of(seconds: float) -> str:
    return duration_text(float_to_int64(seconds * 1e9))


def _add_values(runtime: Runtime, left: Json, right: Json, function: str) -> Json:
    first, second = _pair(runtime, left, right, function)
    if type(first) is Quantity and type(second) is Quantity:
        return (first + second).text()
    if type(first) is int and type(second) is int:
        return duration_text(wrap_int64(first + second))
    if type(first) is float and type(second) is float:
        return first + second
    return _mismatch(function)


def _add(runtime: Runtime, left: Json, right: Json) -> Json:
    return _add_values(runtime, left, right, "add")


def _sum(runtime: Runtime, values: Json) -> Json:
    if type(values) is not list:
        _mismatch("sum")
    if not values:
        raise function_error("sum", "at least one element in the array is required")
    runtime.charge(len(values))
    operands = [_operand(runtime, value, "sum") for value in values]
    if int in map(type, operands):
        parts = map(_beside_duration, operands, values)
        values = [duration_text(o) if type(o) is int else o for o in parts]
        if any(type(value) is not str for value in values):
            _mismatch("sum")
    total = values[0]
    for value in values[1:]:
        total = _add_values(runtime, total, value, "sum")
    return total


def _subtract(runtime: Runtime, left: Json, right: Json) -> Json:
    first, second = _pair(runtime, left, right, "subtract")
    if type(first) is Quantity and type(second) is Quantity:
        return (first - second).text()
    if type(first) is int and type(second) is int:
        return duration_text(wrap_int64(first - second))
    if type(first) is float and type(second) is float:
        return first - second
    return _mismatch("subtract")


def _multiply(runtime: Runtime, left: Json, right: Json) -> Json:
    first = _operand(runtime, left, "multiply")
    second = _operand(runtime, right, "multiply")
    if type(first) is float:
        if type(second) is float:
            return first * second
        first, second = second, first
    if type(second) is not float:
        _mismatch("multiply")
    if type(first) is Quantity:
        return (first * _scalar_quantity(second)).text()
    assert type(first) is int
    return _duration_of(_seconds(first) * second)


def _divide(runtime: Runtime, left: Json, right: Json) -> Json:
    first, second = _pair(runtime, left, right, "divide")
    if type(first) is Quantity:
        return _divide_quantity(first, second)
    if type(first) is int:
        return _divide_duration(first, second)
    if type(second) is not float:
        _mismatch("divide")
    assert type(first) is float
    if second == 0:
        _zero("divide")
    return first / second


def _divide_quantity(first: Quantity, second: Operand) -> Json:
    if type(second) is Quantity:
        divisor = second.approximate()
        if divisor == 0:
            _zero("divide")
        dividend = first.approximate()
        return dividend / divisor
    if type(second) is not float:
        _mismatch("divide")
    if second == 0:
        _zero("divide")
    divisor_quantity = _scalar_quantity(second)
    if not divisor_quantity.unscaled:
        # KYVERNO: 9.3 - upstream panics for a scalar that is zero as a quantity.
        raise fail("division by zero")
    return first.divide(divisor_quantity).text()


def _divide_duration(first: int, second: Operand) -> Json:
    if type(second) is int:
        if second == 0:
            _zero("divide")
        return _seconds(first) / _seconds(second)
    if type(second) is not float:
        _mismatch("divide")
    if second == 0:
        _zero("divide")
    return _duration_of(_seconds(first) / second)


def _modulo(runtime: Runtime, left: Json, right: Json) -> Json:
    first, second = _pair(runtime, left, right, "modulo")
    if type(first) is Quantity and type(second) is Quantity:
        rest = _whole_modulo(first.approximate(), second.approximate())
        return Quantity(rest, 0, first.format).text()
    if type(first) is int and type(second) is int:
        if second == 0:
            _zero("modulo")
        return duration_text(_truncated_modulo(first, second))
    if type(first) is float and type(second) is float:
        return float(_whole_modulo(first, second))
    return _mismatch("modulo")


def _whole_modulo(left: float, right: float) -> int:
    first, second = float_to_int64(left), float_to_int64(right)
    if left != first or right != second:
        raise function_error("modulo", "Non-integer argument(s) passed for modulo")
    if second == 0:
        _zero("modulo")
    return _truncated_modulo(first, second)


def _truncated_modulo(left: int, right: int) -> int:
    """Return the remainder with the sign of the dividend, like Go."""
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _row(name: str, handler: Callable[..., Json], note: str) -> FunctionEntry:
    return FunctionEntry(name, (ANY, ANY), handler, ANY, note)


_OF_TWO: Final = "of two specified values of numbers, quantities, and durations"
STANDARD: Final[tuple[FunctionEntry, ...]] = ()
FUNCTIONS: Final = (
    _row("add", _add, f"does arithmetic addition {_OF_TWO}"),
    FunctionEntry(
        "sum",
        (ARRAY,),
        _sum,
        ANY,
        "does arithmetic addition of specified array of values of numbers, quantities, "
        "and durations",
    ),
    _row("subtract", _subtract, f"does arithmetic subtraction {_OF_TWO}"),
    _row("multiply", _multiply, f"does arithmetic multiplication {_OF_TWO}"),
    _row("divide", _divide, "divisor must be non zero"),
    _row("modulo", _modulo, "divisor must be non-zero, arguments must be integers"),
)
