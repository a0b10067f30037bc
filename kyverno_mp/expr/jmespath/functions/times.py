"""Implement functions that parse, compare and add times.

Room: expr. Takes: Runtime (its ``now``) and checked arguments. Gives: function rows.
Next: calls.py.
Source: docs/behaviour/engine 9.2 (time_*).
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.jmespath.functions.entry import (
    BOOL,
    STRING,
    FunctionEntry,
    Kinds,
)
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import TIME_CHARACTERS_MAX
from kyverno_mp.values.go.duration import duration_error, duration_text, parse_duration
from kyverno_mp.values.go.gotime import GoTime, from_datetime, from_unix
from kyverno_mp.values.go.gotime_parse import RFC3339, parse_time
from kyverno_mp.values.jsonvalue import Json

_INT64_END: Final = 1 << 63
_INT64_DIGITS: Final = 40
_STEPS: Final = 24
"""The steps for parsing or printing one time."""


def _read(timestamp: str) -> GoTime:
    return parse_time(RFC3339, timestamp)


def _duration(duration: str) -> int:
    nanoseconds = parse_duration(duration)
    if nanoseconds is None:
        raise fail(duration_error(duration))
    return nanoseconds


def _time_since(runtime: Runtime, layout: str, start: str, end: str) -> Json:
    first = parse_time(layout or RFC3339, start)
    last = parse_time(layout or RFC3339, end) if end else from_datetime(runtime.now())
    return duration_text(last.since(first))


def _time_now(runtime: Runtime, *_arguments: Json) -> Json:
    return from_datetime(runtime.now()).rfc3339()


def _time_now_utc(runtime: Runtime, *_arguments: Json) -> Json:
    return from_datetime(runtime.now()).utc().rfc3339()


def _time_to_cron(_runtime: Runtime, timestamp: str) -> Json:
    moment = _read(timestamp)
    _, month, day, hour, minute, _ = moment.civil()
    return f"{minute} {hour} {day} {month} {moment.weekday()}"


def _time_add(_runtime: Runtime, timestamp: str, duration: str) -> Json:
    return _read(timestamp).plus(_duration(duration)).rfc3339()


def _time_parse(_runtime: Runtime, layout: str, timestamp: str) -> Json:
    if _parse_int(layout) is None:
        return parse_time(layout, timestamp).rfc3339()
    seconds = _parse_int(timestamp)
    if seconds is None:
        digits = timestamp.lstrip("+-")
        is_number = bool(digits) and digits.isascii() and digits.isdigit()
        problem = "value out of range" if is_number else "invalid syntax"
        raise fail(f'strconv.ParseInt: parsing "{timestamp}": {problem}')
    return from_unix(seconds).rfc3339()


def _parse_int(number: str) -> int | None:
    digits = number[1:] if number[:1] in ("+", "-") else number
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _INT64_DIGITS:
        return None
    value = int(number)
    return value if -_INT64_END <= value < _INT64_END else None


def _time_utc(_runtime: Runtime, timestamp: str) -> Json:
    return _read(timestamp).utc().rfc3339()


def _time_diff(_runtime: Runtime, start: str, end: str) -> Json:
    first = _read(start)
    return duration_text(_read(end).since(first))


def _time_before(_runtime: Runtime, timestamp: str, reference: str) -> Json:
    first = _read(timestamp)
    return first.before(_read(reference))


def _time_after(_runtime: Runtime, timestamp: str, reference: str) -> Json:
    first = _read(timestamp)
    return _read(reference).before(first)


def _time_between(_runtime: Runtime, timestamp: str, start: str, end: str) -> Json:
    moment, first, last = _read(timestamp), _read(start), _read(end)
    return first.before(moment) and moment.before(last)


def _time_truncate(_runtime: Runtime, timestamp: str, duration: str) -> Json:
    moment = _read(timestamp)
    return moment.truncated(_duration(duration)).rfc3339()


def _row(
    name: str, count: int, handler: Callable[..., Json], returns: Kinds, note: str
) -> FunctionEntry:
    def charged(runtime: Runtime, *arguments: str) -> Json:
        length = sum([len(argument) for argument in arguments if type(argument) is str])
        if length > TIME_CHARACTERS_MAX:
            raise BudgetExceeded("expr.time", f"{name}: arguments are too long")
        runtime.charge(_STEPS * len(arguments) + length * 2)
        return handler(runtime, *arguments)

    return FunctionEntry(name, (STRING,) * count, charged, returns, note)


FUNCTIONS: Final = (
    _row(
        "time_since",
        3,
        _time_since,
        STRING,
        "calculate the difference between a start and end period of time where the end "
        "may either be a static definition or the then-current time",
    ),
    _row("time_now", 0, _time_now, STRING, "returns current time in RFC 3339 format"),
    _row(
        "time_now_utc",
        0,
        _time_now_utc,
        STRING,
        "returns current UTC time in RFC 3339 format",
    ),
    _row(
        "time_to_cron",
        1,
        _time_to_cron,
        STRING,
        "converts a time (RFC 3339) to a cron expression (string).",
    ),
    _row(
        "time_add",
        2,
        _time_add,
        STRING,
        "adds duration (second string) to a time value (first string)",
    ),
    _row(
        "time_parse",
        2,
        _time_parse,
        STRING,
        "changes a time value of a given layout to RFC 3339",
    ),
    _row(
        "time_utc",
        1,
        _time_utc,
        STRING,
        "calcutes time in UTC from a given time in RFC 3339 format",
    ),
    _row(
        "time_diff",
        2,
        _time_diff,
        STRING,
        "calculate the difference between a start and end date in RFC3339 format",
    ),
    _row(
        "time_before",
        2,
        _time_before,
        BOOL,
        "checks if a time is before another time, both in RFC3339 format",
    ),
    _row(
        "time_after",
        2,
        _time_after,
        BOOL,
        "checks if a time is after another time, both in RFC3339 format",
    ),
    _row(
        "time_between",
        3,
        _time_between,
        BOOL,
        "checks if a time is between a start and end time, all in RFC3339 format",
    ),
    _row(
        "time_truncate",
        2,
        _time_truncate,
        STRING,
        "returns the result of rounding time down to a multiple of duration",
    ),
)
