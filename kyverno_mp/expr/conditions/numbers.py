"""Parse numbers and durations of conditions like Go's strconv and time.

Room: expr. Takes: strings and numbers. Gives: floats, ints, seconds, nanoseconds.
Next: expr/conditions/equality, expr/conditions/ordering.
Source: docs/behaviour/engine 4.3, 4.9.
"""

import re
from typing import Final

from kyverno_mp.values.go import gofloat
from kyverno_mp.values.go.duration import float_to_int64, parse_duration, wrap_int64
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import Quantity, parse_quantity

_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z")
_MILLI: Final = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)m\Z")
_INT64_DIGITS: Final = 1000
_NUMBER_CHARACTERS_MAX: Final = 1000
"""The maximum length; real numbers are never longer."""
_INT64_END: Final = 1 << 63
_SECOND_NS: Final = 1_000_000_000


def parse_float(number: str) -> float | None:
    """Parse like strconv.ParseFloat(text, 64); None if it returns an error."""
    return (
        gofloat.parse_float(number) if len(number) <= _NUMBER_CHARACTERS_MAX else None
    )


def parse_int(number: str) -> int | None:
    """Parse like strconv.ParseInt(text, 10, 64); None if it returns an error."""
    if len(number) > _INT64_DIGITS or not _INTEGER.match(number):
        return None
    value = int(number)
    return value if -_INT64_END <= value < _INT64_END else None


def whole_seconds_ns(number: float) -> int:
    """Return a number of seconds, truncated to whole seconds, as a Go duration."""
    seconds = number if type(number) is int else float_to_int64(number)
    return wrap_int64(seconds * _SECOND_NS)


def seconds_of(duration_ns: int) -> float:
    """Return Go's Duration.Seconds()."""
    integer, rest = divmod(abs(duration_ns), _SECOND_NS)
    seconds = float(integer) + float(rest) / 1e9
    return seconds if duration_ns >= 0 else -seconds


def duration_text_ns(value: Json) -> int | None:
    """Return the duration if one side is a duration text; ``"0"`` is none."""
    if type(value) is str and value != "0":
        return parse_duration(value)
    return None


def as_durations(key: Json, value: Json) -> tuple[float, float] | None:
    """Return both sides in seconds if at least one is a duration text.

    The other side must be a duration text or a number; None otherwise
    (docs/behaviour/engine 4.3), and for ``as_amounts``.
    """
    key_ns, value_ns = duration_text_ns(key), duration_text_ns(value)
    if key_ns is None and value_ns is None:
        return None
    if key_ns is None:
        if not _is_number(key) or is_milli(value):
            return None
        key_ns = whole_seconds_ns(key)
    if value_ns is None:
        if not _is_number(value) or is_milli(key):
            return None
        value_ns = whole_seconds_ns(value)
    return seconds_of(key_ns), seconds_of(value_ns)


def as_amounts(key: Json, value: Json) -> tuple[Quantity, Quantity] | None:
    """Return a number and a text such as ``500m`` as quantities; None otherwise.

    Beside a number, ``m`` is milli; beside a duration, it is minutes.
    """
    if _is_number(key) and is_milli(value):
        sides = parse_quantity(str(key)), parse_quantity(value)
    elif is_milli(key) and _is_number(value):
        sides = parse_quantity(key), parse_quantity(str(value))
    else:
        return None
    left, right = sides
    return None if left is None or right is None else (left, right)


def _is_number(value: Json) -> bool:
    return type(value) is int or type(value) is float


def is_milli(value: Json) -> bool:
    """Return whether a text is a quantity as well as a duration."""
    if type(value) is not str or value[-1:] != "m":
        return False
    return len(value) <= _NUMBER_CHARACTERS_MAX and bool(_MILLI.match(value))
