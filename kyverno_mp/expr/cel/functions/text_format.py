"""Implement ``string.format(list)``.

Room: expr. Takes: Meter, the format, its arguments. Gives: format_text; ``clauses`` and
the error messages for the check of literals.
Next: expr/cel/functions/strings.py, expr/cel/syntax/literals.py.
Source: cel-go ext/formatting.go (strings library, version 2: strings in US English).
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kyverno_mp.expr.cel.functions.times import duration_seconds_text, timestamp_text
from kyverno_mp.expr.cel.values import (
    LIST_BYTES,
    CelFailed,
    Duration,
    Meter,
    Timestamp,
    TypeValue,
    Uint,
    Value,
    over_budget,
    text_bytes,
    type_name,
)
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX
from kyverno_mp.values.go.duration import quote_text
from kyverno_mp.values.go.gotext import float_g

_CLAUSE: Final = re.compile(r"(?:\.([0-9]*))?(.)?", re.DOTALL)
_PRECISION: Final = 6
_PRECISION_MAX: Final = 1000
"""The maximum precision of one clause; more digits are unreadable."""
_PIECE_COST: Final = 40
"""The cost of one clause, or of the text between two clauses."""
_ITEM_COST: Final = 20
_ITEM_BYTES: Final = 80
_INT_DIGITS: Final = 18
_WORDS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_RAISED: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_PARSING: Final = "could not parse formatting clause: "
_PRECISE: Final = f"{_PARSING}error while parsing precision: "
_TO_INT: Final = "error while converting precision to integer: strconv.Atoi: parsing"

ONLY: Final[dict[str, str]] = {
    "s": "string clause can only be used on strings, bools, bytes, ints, doubles, maps,"
    " lists, types, durations, and timestamps",
    "d": "decimal clause can only be used on integers",
    "f": "fixed-point clause can only be used on doubles",
    "e": "scientific clause can only be used on doubles",
    "b": "only integers and bools can be formatted as binary",
    "x": "only integers, byte buffers, and strings can be formatted as hex",
    "X": "only integers, byte buffers, and strings can be formatted as hex",
    "o": "octal clause can only be used on integers",
}
"""Letter of a clause -> its error message for an argument of another type."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One ``%...`` clause of a format; ``problem``: cel-go's error if it is invalid."""

    letter: str
    precision: int = _PRECISION
    problem: str = ""


def clauses(template: str) -> Iterator[str | Clause]:
    """Yield the literal pieces and the clauses of a format, up to an invalid clause."""
    at = 0
    while (mark := template.find("%", at)) >= 0:
        yield template[at:mark]
        if template.startswith("%%", mark):
            yield "%"
            at = mark + 2
            continue
        match = _CLAUSE.match(template, mark + 1)
        assert match is not None, "every part is optional"
        clause = _clause(match[1], match[2] or "")
        yield clause
        if clause.problem:
            return
        at = match.end()
    yield template[at:]


def _clause(digits: str | None, letter: str) -> Clause:
    if digits is None and not letter:
        return Clause("", problem="unexpected end of string")
    if not letter:
        end = "could not find end of precision specifier"
        return Clause("", problem=f"{_PRECISE}{end}")
    if digits == "":
        return Clause("", problem=f'{_PRECISE}{_TO_INT} "": invalid syntax')
    if digits is not None and len(digits) > _INT_DIGITS:
        problem = f'{_PRECISE}{_TO_INT} "{digits[:40]}": value out of range'
        return Clause("", problem=problem)
    if letter not in ONLY:
        return Clause(
            "", problem=f'{_PARSING}unrecognized formatting clause "{letter}"'
        )
    return Clause(letter, _PRECISION if digits is None else int(digits))


def format_text(meter: Meter, template: str, args: list[Value]) -> str:
    """Fill ``%s %d %f %e %b %x %X %o`` with the arguments in order."""
    meter.charge_bytes(text_bytes(len(template), template))
    out: list[str] = []
    used = 0
    for piece in clauses(template):
        meter.charge(_PIECE_COST)
        if type(piece) is str:
            meter.hold(LIST_BYTES)
            out.append(piece)
            continue
        assert type(piece) is Clause
        if used >= len(args):
            raise CelFailed(f"index {used} out of range")
        if piece.problem:
            raise CelFailed(piece.problem)
        filled = _filled(meter, piece, args[used])
        used += 1
        meter.charge_bytes(text_bytes(len(filled), filled))
        out.append(filled)
    return "".join(out)


def _filled(meter: Meter, clause: Clause, value: Value) -> str:
    letter, precision = clause.letter, clause.precision
    if precision > _PRECISION_MAX:
        raise over_budget()
    if value.__class__ is str or value.__class__ is bytes:
        meter.charge_bytes(4 * len(value))
    if letter == "s":
        return _plain(meter, value)
    if letter in "fe":
        meter.charge(10 * _PIECE_COST + precision)
        return _floating(letter, precision, value)
    return _WHOLE[letter](letter, value)


def _refuse(letter: str, value: Value) -> CelFailed:
    problem = f"{ONLY[letter]}, was given {type_name(value)}"
    return CelFailed(f"error during formatting: {problem}")


def _floating(letter: str, precision: int, value: Value) -> str:
    """Print a double as in US English: thousands separators, superscript powers."""
    if value.__class__ is not float and not (
        value.__class__ is str and value in _WORDS
    ):
        raise _refuse(letter, value)
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if letter == "f":
        return f"{number:,.{precision}f}"
    # KYVERNO: cel-go uses the precision of %e as a width.
    mantissa, _, exponent = f"{number:.{_PRECISION}e}".partition("e")
    return f"{mantissa}\u00d710{exponent.lstrip('+').translate(_RAISED)}"


def _decimal(letter: str, value: Value) -> str:
    if value.__class__ not in (int, Uint):
        raise _refuse(letter, value)
    return str(int(value))


def _binary(letter: str, value: Value) -> str:
    if value.__class__ not in (int, Uint, bool):
        raise _refuse(letter, value)
    return f"{int(value):b}"


def _octal(letter: str, value: Value) -> str:
    if value.__class__ not in (int, Uint):
        raise _refuse(letter, value)
    return f"{int(value):o}"


def _hex(letter: str, value: Value) -> str:
    kind = value.__class__
    if kind is int or kind is Uint:
        digits = f"{int(value):x}"
    elif kind is str:
        digits = value.encode("utf-8", "surrogatepass").hex()
    elif kind is bytes:
        digits = value.hex()
    else:
        raise _refuse(letter, value)
    return digits.upper() if letter == "X" else digits


_WHOLE: Final[dict[str, Callable[[str, Value], str]]] = {
    "d": _decimal,
    "b": _binary,
    "o": _octal,
    "x": _hex,
    "X": _hex,
}


def _plain(meter: Meter, value: Value) -> str:
    kind = value.__class__
    if kind is list or kind is dict:
        return _literal(meter, value, 0)
    simple = _SIMPLE.get(kind)
    if simple is None:
        raise _refuse("s", value)
    return simple(value)


def _literal(meter: Meter, value: Value, depth: int) -> str:
    """Print a member of a list or map in CEL syntax."""
    if depth > CEL_VALUE_DEPTH_MAX:
        raise over_budget()
    kind = value.__class__
    if kind is list:
        meter.charge(_ITEM_COST * len(value) + 4)
        meter.hold(len(value) * _ITEM_BYTES)
        items = [_literal(meter, item, depth + 1) for item in value]
        return f"[{', '.join(items)}]"
    if kind is dict:
        meter.charge(4 * _ITEM_COST * len(value) + 4)
        meter.hold(len(value) * 4 * _ITEM_BYTES)
        pairs = sorted(
            (_key(meter, key), _literal(meter, item, depth + 1))
            for key, item in value.items()
        )
        return f"{{{', '.join(f'{key}:{item}' for key, item in pairs)}}}"
    if kind is str or kind is bytes:
        meter.charge(4 * len(value))
        meter.hold(16 * len(value))
    written = _WRITTEN.get(kind)
    if written is not None:
        return written(value)
    simple = _SIMPLE.get(kind)
    if simple is None:
        problem = f"no formatting function for {type_name(value)}"
        raise CelFailed(f"error during formatting: {problem}")
    return simple(value)


def _key(meter: Meter, key: Value) -> str:
    if key.__class__ not in (str, bool, int, Uint):
        problem = f"no formatting function for map key of type {type_name(key)}"
        raise CelFailed(f"error during formatting: {problem}")
    return _literal(meter, key, 0)


def _double_literal(value: float) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"+Inf"' if value > 0 else '"-Inf"'
    return f"{value:.{_PRECISION}f}"


def _bytes_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


_SIMPLE: Final[dict[type, Callable[[Value], str]]] = {
    type(None): lambda _value: "null",
    bool: lambda value: "true" if value else "false",
    int: str,
    Uint: lambda value: str(int(value)),
    float: lambda value: "NaN" if math.isnan(value) else float_g(value),
    str: str,
    bytes: _bytes_text,
    Timestamp: timestamp_text,
    Duration: duration_seconds_text,
    TypeValue: lambda value: value.name,
}
_WRITTEN: Final[dict[type, Callable[[Value], str]]] = {
    str: quote_text,
    bytes: lambda value: f"b{quote_text(_bytes_text(value))}",
    float: _double_literal,
    Timestamp: lambda value: f"timestamp({quote_text(timestamp_text(value))})",
    Duration: lambda value: f"duration({quote_text(duration_seconds_text(value))})",
}
