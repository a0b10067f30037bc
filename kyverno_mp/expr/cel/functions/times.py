"""Implement timestamps and durations.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
May touch: nothing outside its arguments; no clock.
Source: the CEL language definition; the API server's default zone UTC.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.library import Declaration, function, member
from kyverno_mp.expr.cel.operators import (
    duration_result,
    int_result,
    timestamp_result,
)
from kyverno_mp.expr.cel.values import (
    CelFailed,
    Duration,
    Meter,
    Timestamp,
    Value,
)
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.go.gotime import GoTime, from_datetime
from kyverno_mp.values.go.gotime_parse import RFC3339, parse_time

SECOND: Final = 10**9
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,6}")
_ZONES_MAX: Final = 256
_CYCLE: Final = 146_097 * 86_400
"""The seconds in 400 years."""
_TEXT_MAX: Final = 256
"""The maximum length of a timestamp or duration; real ones are much shorter."""
_ZONE_COST: Final = 8_000
"""Loading a zone from the system's files takes about 400 microseconds."""
_SHOWN_COST: Final = 150
_PARSED_COST: Final = 800
_zones: "dict[str, ZoneInfo | int | str | None]" = {}
"""Zones by name; a string is the error of an invalid offset."""


def parse_timestamp(timestamp: str) -> Timestamp:
    """Parse RFC 3339. Raises: CelFailed."""
    try:
        # A longer string is not a timestamp, and the error would quote all of it.
        moment = parse_time(RFC3339, timestamp if len(timestamp) <= _TEXT_MAX else "")
    except ExpressionFailed:
        raise CelFailed(
            "type conversion error from 'string' to 'google.protobuf.Timestamp'"
        ) from None
    return timestamp_result(moment.seconds * SECOND + moment.nanos, moment.offset_s)


def parse_duration_text(duration: str) -> Duration:
    """Parse a Go duration. Raises: CelFailed."""
    ns = parse_duration(duration) if len(duration) <= _TEXT_MAX else None
    if ns is None:
        raise CelFailed(
            "type conversion error from 'string' to 'google.protobuf.Duration'"
        )
    return Duration(ns)


def timestamp_text(value: Timestamp) -> str:
    """Print as RFC 3339, with as many fraction digits as necessary."""
    seconds, nanos = divmod(value.ns, SECOND)
    printed = GoTime(seconds, nanos, value.offset_s).rfc3339()
    if not nanos:
        return printed
    size = len("Z") if printed.endswith("Z") else len("+00:00")
    return f"{printed[:-size]}.{f'{nanos:09d}'.rstrip('0')}{printed[-size:]}"


def duration_seconds_text(value: Duration) -> str:
    """Print in CEL's format: seconds, e.g. ``1.5s``."""
    seconds, rest = divmod(abs(value.ns), SECOND)
    # GO: Duration.Seconds is a double, so a duration of many years loses nanoseconds.
    printed = format(Decimal(repr(seconds + rest / 1e9)), "f")
    sign = "-" if value.ns < 0 else ""
    return f"{sign}{printed.removesuffix('.0')}s"


def _zone(meter: Meter, name: str) -> ZoneInfo | int:
    """Return a named zone, or the seconds of a fixed offset."""
    name = name[: _TEXT_MAX + 1]
    if name not in _zones:
        meter.charge(_ZONE_COST)
        if len(_zones) >= _ZONES_MAX:
            _zones.clear()
        _zones[name] = _found_zone(name)
    zone = _zones[name]
    if zone is None:
        # GO: time.LoadLocation never opens such names.
        if ".." in name or name.startswith(("/", "\\")):
            raise CelFailed("time: invalid location name")
        raise CelFailed(f"unknown time zone {name}")
    if type(zone) is str:
        raise CelFailed(zone)
    assert not isinstance(zone, str)
    return zone


def _offset(name: str) -> int | str:
    """Return the seconds of ``+02:00``. KYVERNO: cel-go accepts any two numbers."""
    hours, _, minutes = name.partition(":")
    for part in (hours, minutes):
        if not _NUMBER.fullmatch(part):
            return f"strconv.Atoi: parsing {quote(part)}: invalid syntax"
    sign = -60 if name.startswith("-") else 60
    return int(hours) * 3600 + int(minutes) * sign


def _found_zone(name: str) -> ZoneInfo | int | str | None:
    if ":" in name:
        return _offset(name)
    if name == "Local":
        # Go's name for the zone of the process, which is UTC in a container.
        return 0
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _shown(meter: Meter, value: Timestamp, zone: str) -> GoTime:
    seconds, nanos = divmod(value.ns, SECOND)
    if zone in ("", "UTC"):
        return GoTime(seconds, nanos)
    resolved = _zone(meter, zone)
    if type(resolved) is int:
        return GoTime(seconds, nanos, resolved)
    assert isinstance(resolved, ZoneInfo)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).astimezone(resolved)
    except (OverflowError, ValueError):
        # Python has no local years 0 and 10000, but the calendar repeats after 400
        # years.
        near = seconds + (_CYCLE if seconds < 0 else -_CYCLE)
        moment = datetime.fromtimestamp(near, UTC).astimezone(resolved)
    return GoTime(seconds, nanos, from_datetime(moment).offset_s)


def _year_day(go_time: GoTime) -> int:
    year, month, day, *_ = go_time.civil()
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    before = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)[month - 1]
    return before + (1 if leap and month > 2 else 0) + day - 1  # noqa: PLR2004 - after February


_PARTS: Final[dict[str, Callable[[GoTime], int]]] = {
    "getFullYear": lambda moment: moment.civil()[0],
    "getMonth": lambda moment: moment.civil()[1] - 1,
    "getDate": lambda moment: moment.civil()[2],
    "getDayOfMonth": lambda moment: moment.civil()[2] - 1,
    "getDayOfWeek": lambda moment: moment.weekday(),
    "getDayOfYear": _year_day,
    "getHours": lambda moment: moment.civil()[3],
    "getMinutes": lambda moment: moment.civil()[4],
    "getSeconds": lambda moment: moment.civil()[5],
    "getMilliseconds": lambda moment: moment.nanos // 1_000_000,
}


def _getters() -> list[Declaration]:
    declared = []
    for name, part in _PARTS.items():

        def get(
            meter: Meter,
            value: Timestamp,
            zone: str = "",
            part: Callable[[GoTime], int] = part,
        ) -> int:
            return part(_shown(meter, value, zone))

        for args in ("timestamp", "timestamp, string"):
            signature = f"{name}({args}) -> int"
            declared.append(member(signature, get, cost=_SHOWN_COST))
    for name, unit in (
        ("getHours", 3600 * SECOND),
        ("getMinutes", 60 * SECOND),
        ("getSeconds", SECOND),
    ):

        def whole(_meter: Meter, value: Duration, unit: int = unit) -> int:
            return int(abs(value.ns) // unit) * (1 if value.ns >= 0 else -1)

        declared.append(member(f"{name}(duration) -> int", whole, cost=8))

    def milliseconds(_meter: Meter, value: Duration) -> int:
        size = abs(value.ns) // 1_000_000
        return size if value.ns >= 0 else -size

    declared.append(member("getMilliseconds(duration) -> int", milliseconds, cost=8))
    return declared


def _text_to_timestamp(_meter: Meter, timestamp: str) -> Timestamp:
    return parse_timestamp(timestamp)


def _text_to_duration(_meter: Meter, duration: str) -> Duration:
    return parse_duration_text(duration)


def _int_to_duration(_meter: Meter, _value: int) -> Duration:
    # KYVERNO: cel 12c - declared for the type checker only; cel-go cannot convert it.
    raise CelFailed("type conversion error from 'int' to 'google.protobuf.Duration'")


def _same(_meter: Meter, value: Value) -> Value:
    return value


def _moved(_meter: Meter, value: Value, right: Value) -> Timestamp:
    offset_s = (value if value.__class__ is Timestamp else right).offset_s
    return timestamp_result(value.ns + right.ns, offset_s)


OVERLOADS = (
    function("timestamp(string) -> timestamp", _text_to_timestamp, cost=_PARSED_COST),
    function(
        "timestamp(int) -> timestamp",
        lambda _m, s: timestamp_result(s * SECOND),
        cost=10,
    ),
    function("timestamp(timestamp) -> timestamp", _same),
    function("duration(string) -> duration", _text_to_duration, cost=_PARSED_COST),
    function("duration(duration) -> duration", _same),
    function("duration(int) -> duration", _int_to_duration, cost=8),
    function("int(timestamp) -> int", lambda _m, t: t.ns // SECOND),
    function("int(duration) -> int", lambda _m, d: int_result(d.ns)),
    function(
        "string(timestamp) -> string", lambda _m, t: timestamp_text(t), cost=_SHOWN_COST
    ),
    function(
        "string(duration) -> string", lambda _m, d: duration_seconds_text(d), cost=20
    ),
    function("+(timestamp, duration) -> timestamp", _moved, cost=15),
    function("+(duration, timestamp) -> timestamp", _moved, cost=15),
    function(
        "+(duration, duration) -> duration",
        lambda _m, a, b: duration_result(a.ns + b.ns),
        cost=15,
    ),
    function(
        "-(timestamp, timestamp) -> duration",
        lambda _m, a, b: duration_result(a.ns - b.ns),
        cost=15,
    ),
    function(
        "-(timestamp, duration) -> timestamp",
        lambda _m, a, b: timestamp_result(a.ns + int_result(-b.ns), a.offset_s),
        cost=15,
    ),
    function(
        "-(duration, duration) -> duration",
        lambda _m, a, b: duration_result(a.ns - b.ns),
        cost=15,
    ),
    *_getters(),
)
