"""``string.format(list)``.

Room: expr. Takes: Meter, the format, its arguments. Gives: format_text.
Next: functions/strings.py. May touch: nothing outside its arguments.
Source: cel-go ext/formatting.go.
"""

import math
import re
from collections.abc import Callable
from typing import Final

from kyverno_mp.expr.cel.functions.times import duration_seconds_text, timestamp_text
from kyverno_mp.expr.cel.values import (
    CelFailed,
    Duration,
    Meter,
    Timestamp,
    TypeValue,
    Uint,
    Value,
    over_budget,
    type_name,
)
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX
from kyverno_mp.values.gotext import float_plain

_CLAUSE: Final = re.compile(r"%(%|(?:\.([0-9]{1,6}))?(.)|)", re.DOTALL)
_PRECISION: Final = 6
_PRECISION_MAX: Final = 100
_NUMBERS: Final = frozenset({int, Uint, float})


def format_text(meter: Meter, text: str, args: list[Value]) -> str:
    """Fill ``%s %d %f %e %b %x %X %o`` with the arguments in order."""
    meter.charge_text(len(text))
    out: list[str] = []
    last = used = 0
    for found in _CLAUSE.finditer(text):
        out.append(text[last : found.start()])
        last = found.end()
        if found[1] == "%":
            out.append("%")
            continue
        if not found[3]:
            raise CelFailed("unexpected end of format string")
        if used >= len(args):
            raise CelFailed(f"index {used} out of range")
        piece = _clause(meter, found[3], found[2], args[used])
        used += 1
        meter.charge_bytes(len(piece))
        out.append(piece)
    out.append(text[last:])
    return "".join(out)


def _clause(meter: Meter, letter: str, digits: str | None, value: Value) -> str:
    precision = _PRECISION if digits is None else int(digits)
    if precision > _PRECISION_MAX:
        raise CelFailed(
            f"precision {precision} exceeds maximum allowed precision {_PRECISION_MAX}"
        )
    if letter == "s":
        return _plain(meter, value, 0)
    if letter in "fe":
        return _floating(letter, precision, value)
    convert = _CLAUSES.get(letter)
    if convert is None:
        raise CelFailed(f'unrecognized formatting clause "{letter}"')
    return convert(value)


def _refuse(text: str, value: Value) -> CelFailed:
    return CelFailed(f"error during formatting: {text}, was given {type_name(value)}")


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return ""


def _floating(letter: str, precision: int, value: Value) -> str:
    kind: type = value.__class__
    if kind not in _NUMBERS:
        word = "fixed-point" if letter == "f" else "scientific"
        raise _refuse(
            f"{word} clause can only be used on ints, uints, and doubles", value
        )
    number = float(value)
    return _special(number) or f"{number:.{precision}{letter}}"


def _decimal(value: Value) -> str:
    kind: type = value.__class__
    if kind is float:
        return _special(value) or float_plain(value)
    if kind not in _NUMBERS:
        raise _refuse(
            "decimal clause can only be used on ints, uints, and doubles", value
        )
    return str(int(value))


def _binary(value: Value) -> str:
    if value.__class__ not in (int, Uint, bool):
        raise _refuse("only ints, uints, and bools can be formatted as binary", value)
    return f"{int(value):b}"


def _octal(value: Value) -> str:
    if value.__class__ not in (int, Uint):
        raise _refuse("octal clause can only be used on ints and uints", value)
    return f"{int(value):o}"


def _hex(value: Value) -> str:
    if value.__class__ in (int, Uint):
        return f"{int(value):x}"
    if value.__class__ is str:
        return str(value.encode().hex())
    if value.__class__ is bytes:
        return str(value.hex())
    raise _refuse("only ints, uints, bytes, and strings can be formatted as hex", value)


_CLAUSES: Final[dict[str, Callable[[Value], str]]] = {
    "d": _decimal,
    "b": _binary,
    "o": _octal,
    "x": _hex,
    "X": lambda value: _hex(value).upper(),
}


def _plain(meter: Meter, value: Value, depth: int) -> str:
    kind = value.__class__
    if kind is str:
        return str(value)
    if kind in (list, dict):
        if depth > CEL_VALUE_DEPTH_MAX:
            raise over_budget()
        meter.charge(len(value) + 1)
        if kind is list:
            return f"[{', '.join(_plain(meter, v, depth + 1) for v in value)}]"
        pairs = sorted(
            (_plain(meter, k, depth + 1), _plain(meter, v, depth + 1))
            for k, v in value.items()
        )
        return f"{{{', '.join(f'{k}: {v}' for k, v in pairs)}}}"
    simple = _SIMPLE.get(kind)
    if simple is None:
        raise _refuse(
            "string clause can only be used on strings, bools, bytes, ints, doubles,"
            " maps, lists, types, durations, and timestamps",
            value,
        )
    return simple(value)


_SIMPLE: Final[dict[type, Callable[[Value], str]]] = {
    type(None): lambda _value: "null",
    bool: lambda value: "true" if value else "false",
    int: str,
    Uint: lambda value: str(int(value)),
    float: _decimal,
    bytes: lambda value: value.decode("utf-8", "replace"),
    Timestamp: timestamp_text,
    Duration: duration_seconds_text,
    TypeValue: lambda value: value.name,
}
