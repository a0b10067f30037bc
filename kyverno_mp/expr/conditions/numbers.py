"""Parse numbers and durations of conditions like Go's strconv and time.

Room: expr. Takes: strings and numbers. Gives: floats, ints, seconds, nanoseconds.
Next: expr/conditions/equality, expr/conditions/ordering.
May touch: nothing outside its arguments. Source: docs/behaviour/engine 4.3, 4.9.
"""

import re
from typing import Final

from kyverno_mp.values.go import gofloat
from kyverno_mp.values.go.duration import float_to_int64, parse_duration, wrap_int64
from kyverno_mp.values.jsonvalue import Json

_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z")
_INT64_DIGITS: Final = 1000
_NUMBER_CHARACTERS_MAX: Final = 1000
"""The maximum length; real numbers are never longer."""
_INT64_END: Final = 1 << 63
_SECOND_NS: Final = 1_000_000_000


def parse_float(text: str) -> float | None:
    """Parse like strconv.ParseFloat(text, 64); None if it returns an error."""
    return gofloat.parse_float(text) if len(text) <= _NUMBER_CHARACTERS_MAX else None


def parse_int(text: str) -> int | None:
    """Parse like strconv.ParseInt(text, 10, 64); None if it returns an error."""
    if len(text) > _INT64_DIGITS or not _INTEGER.match(text):
        return None
    value = int(text)
    return value if -_INT64_END <= value < _INT64_END else None


def whole_seconds_ns(number: float) -> int:
    """Return a number of seconds, truncated to whole seconds, as a Go duration."""
    seconds = number if type(number) is int else float_to_int64(number)
    return wrap_int64(seconds * _SECOND_NS)


def seconds_of(duration_ns: int) -> float:
    """Return Go's Duration.Seconds()."""
    whole, rest = divmod(abs(duration_ns), _SECOND_NS)
    seconds = float(whole) + float(rest) / 1e9
    return seconds if duration_ns >= 0 else -seconds


def duration_text_ns(value: Json) -> int | None:
    """Return the duration if one side is a duration text; ``"0"`` is none."""
    if type(value) is str and value != "0":
        return parse_duration(value)
    return None


def as_durations(key: Json, value: Json) -> tuple[float, float] | None:
    """Return both sides in seconds if at least one is a duration text.

    The other side must be a duration text or a number; None otherwise
    (docs/behaviour/engine 4.3).
    """
    key_ns, value_ns = duration_text_ns(key), duration_text_ns(value)
    if key_ns is None and value_ns is None:
        return None
    if key_ns is None:
        if type(key) is not int and type(key) is not float:
            return None
        key_ns = whole_seconds_ns(key)
    if value_ns is None:
        if type(value) is not int and type(value) is not float:
            return None
        value_ns = whole_seconds_ns(value)
    return seconds_of(key_ns), seconds_of(value_ns)
