"""Parse and print Go durations.

Room: values. Takes: strings such as ``1h30m``. Gives: nanoseconds as int, and Go's
text.
Next: expr (arithmetic and time functions), expr/pattern, expr/conditions.
Source: docs/behaviour/engine 0.3; Go's time.ParseDuration and Duration.String.
"""

import re
from typing import Final

from kyverno_mp.limits import DURATION_CHARACTERS_MAX

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DIGITS: Final = frozenset("0123456789")
_FIRST: Final = frozenset("0123456789.+-")
_LIMIT: Final = 1 << 63
_FLOAT_LIMIT: Final = float(_LIMIT)
_UNUSUAL: Final = re.compile(r'["\\]|[^\x20-\x7f]')


def quote_text(string: str) -> str:
    r"""Quote as package time does: bytes outside printable ASCII become ``\xHH``."""
    if string.isascii() and string.isprintable():
        # PERF: nearly all quoted strings are plain ASCII.
        escaped = string.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return f'"{_UNUSUAL.sub(_escaped, string)}"'


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    if char in '"\\':
        return "\\" + char
    return "".join([f"\\x{byte:02x}" for byte in char.encode("utf-8", "replace")])


def parse_duration(duration: str) -> int | None:
    """Return the nanoseconds, or None if Go cannot parse the text.

    Shape: ``1h5m``, ``-1.5s``, ``0``; units h m s ms us ns; no days.
    """
    # PERF: most strings tried here are names or images; their first character already
    # rules them out.
    if (
        not duration
        or duration[0] not in _FIRST
        or len(duration) > DURATION_CHARACTERS_MAX
    ):
        return None
    parsed = _parse(duration)
    return parsed if type(parsed) is int else None


def duration_error(duration: str) -> str:
    """Return Go's error message for a string that ``parse_duration`` rejects."""
    parsed = _parse(duration)
    return parsed if type(parsed) is str else ""


def _parse(duration: str) -> int | str:
    body = duration[1:] if duration[:1] in ("-", "+") and duration else duration
    if body == "0":
        return 0
    invalid = "time: invalid duration " + quote_text(duration)
    if not body:
        return invalid
    total = 0
    position = 0
    while position < len(body):
        read = _read_term(duration, body, position)
        if type(read) is str:
            return read or invalid
        assert type(read) is tuple
        term, position = read
        total += term
        if total > _LIMIT:
            return invalid
    if duration[0] == "-":
        return -total
    return total if total < _LIMIT else invalid


def _read_term(duration: str, body: str, position: int) -> tuple[int, int] | str:
    """Parse one number with its unit; "" stands for the common error message."""
    whole_end = _digits_end(body, position)
    fraction_end = whole_end
    if whole_end < len(body) and body[whole_end] == ".":
        fraction_end = _digits_end(body, whole_end + 1)
    if whole_end == position and fraction_end <= whole_end + 1:
        return ""
    unit_end = fraction_end
    while unit_end < len(body) and body[unit_end] not in ".0123456789":
        unit_end += 1
    integer = _bounded_int(body[position:whole_end])
    if integer is None:
        return ""
    if unit_end == fraction_end:
        return "time: missing unit in duration " + quote_text(duration)
    name = body[fraction_end:unit_end]
    unit = _UNITS.get(name)
    if unit is None:
        return (
            f"time: unknown unit {quote_text(name)} in duration {quote_text(duration)}"
        )
    if integer > _LIMIT // unit:
        return ""
    value = integer * unit + _fraction_ns(body[whole_end + 1 : fraction_end], unit)
    return (value, unit_end) if value <= _LIMIT else ""


def _digits_end(body: str, position: int) -> int:
    while position < len(body) and body[position] in _DIGITS:
        position += 1
    return position


def _bounded_int(digits: str) -> int | None:
    stripped = digits.lstrip("0")
    if len(stripped) > 19:  # noqa: PLR2004 - 2**63 has 19 digits
        return None
    value = int(stripped or "0")
    return value if value <= _LIMIT else None


def _fraction_ns(digits: str, unit: int) -> int:
    value = 0
    scale = 1.0
    for digit in digits:
        if value > (_LIMIT - 1) // 10:
            break
        longer = value * 10 + ord(digit) - 48
        if longer > _LIMIT:
            break
        value = longer
        scale *= 10
    return int(float(value) * (float(unit) / scale)) if value else 0


def duration_text(nanoseconds: int) -> str:
    """Print like Go's Duration.String: ``1h0m0s``, ``1m40s``, ``1.5ms``, ``0s``."""
    if nanoseconds == 0:
        return "0s"
    sign = "-" if nanoseconds < 0 else ""
    size = abs(nanoseconds)
    if size < _UNITS["us"]:
        return f"{sign}{size}ns"
    if size < _UNITS["ms"]:
        return f"{sign}{_decimal(size, 3)}\u00b5s"
    if size < _UNITS["s"]:
        return f"{sign}{_decimal(size, 6)}ms"
    minutes, rest = divmod(size, 60_000_000_000)
    seconds = _decimal(rest, 9) + "s"
    if not minutes:
        return sign + seconds
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{sign}{minutes}m{seconds}"
    return f"{sign}{hours}h{minutes}m{seconds}"


def _decimal(value: int, places: int) -> str:
    integer, fraction = divmod(value, 10**places)
    if not fraction:
        return str(integer)
    return f"{integer}.{fraction:0{places}d}".rstrip("0")


def wrap_int64(value: int) -> int:
    """Wrap around on overflow like Go's int64 arithmetic."""
    return (value + _LIMIT) % (_LIMIT << 1) - _LIMIT


def float_to_int64(value: float) -> int:
    """Convert like Go on amd64: NaN and overflows become the smallest int64."""
    if -_FLOAT_LIMIT <= value < _FLOAT_LIMIT:
        return int(value)
    return -_LIMIT
