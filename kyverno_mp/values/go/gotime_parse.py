"""Parse times by Go layouts.

Room: values. Takes: strings and Go layouts. Gives: GoTime. Next: expr/jmespath and
expr/cel (time functions), values/ttl.py.
Source: docs/behaviour/engine 9.2 (time_*); Go's package time (format.go).
"""

from typing import Final

import re2

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.duration import quote_text
from kyverno_mp.values.go.gocalendar import (
    DAY_S,
    EPOCH_DAYS,
    date_of,
    days_before,
    days_in,
    is_leap,
)
from kyverno_mp.values.go.gotime import GoTime
from kyverno_mp.values.go.gotime_layout import split_layout

RFC3339: Final = "2006-01-02T15:04:05Z07:00"

_MONTHS: Final = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS: Final = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
]
_FAST: Final = re2.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))"
)
_OFFSET_FORMS: Final = {
    "07": r"([+-])(\d\d)()()",
    "0700": r"([+-])(\d\d)(\d\d)()",
    "070000": r"([+-])(\d\d)(\d\d)(\d\d)",
    "07:00": r"([+-])(\d\d):(\d\d)()",
    "07:00:00": r"([+-])(\d\d):(\d\d):(\d\d)",
}
_ZONE_LENGTHS: Final = (3, 4)
"""A zone with this number of capital letters must not be followed by another one."""
_OFFSETS: Final = {form: re2.compile(regex) for form, regex in _OFFSET_FORMS.items()}
_ZONE: Final = re2.compile(
    r"ChST|MeST|GMT|[+-]\d+|[A-Z]{6}|[A-Z]{4}T|WITA|[A-Z]{3}T|[A-Z]{3}"
)


def parse_time(layout: str, value: str) -> GoTime:
    """Parse ``value`` by a Go layout; fields missing from the layout are zero or one.

    Shape: ``parse_time("3:04PM", "5:06PM")`` is 0000-01-01T17:06:00Z.
    Raises: ExpressionFailed (values.time) with Go's text.
    """
    if layout == RFC3339:
        fast = _parse_fast(value)
        if fast is not None:
            return fast
    return _LayoutParser(layout, value).read()


def is_time(value: str) -> bool:
    """Return whether Kubernetes parses the text as a time."""
    try:
        parse_time(RFC3339, value)
    except ExpressionFailed:
        return False
    return True


def _parse_fast(value: str) -> GoTime | None:
    match = _FAST.fullmatch(value)
    if match is None:
        return None
    *numbers, fraction, sign, zone_hour, zone_minute = match.groups()
    year, month, day, hour, minute, second = map(int, numbers)
    offset = 0
    if sign:
        offset = (int(zone_hour) * 60 + int(zone_minute)) * 60
        offset = -offset if sign == "-" else offset
    in_range = (
        1 <= month <= 12  # noqa: PLR2004 - limits of the calendar
        and 1 <= day <= days_in(year, month)
        and hour <= 23  # noqa: PLR2004
        and minute <= 59  # noqa: PLR2004
        and second <= 59  # noqa: PLR2004
        and (not sign or (int(zone_hour) <= 23 and int(zone_minute) <= 59))  # noqa: PLR2004
    )
    if not in_range:
        return None
    nanos = int((fraction or "0")[:9].ljust(9, "0"))
    days = days_before(year, month, day) - EPOCH_DAYS
    clock = hour * 3600 + minute * 60 + second
    return GoTime(days * DAY_S + clock - offset, nanos, offset)


class _Bad(Exception):
    """The value does not match the element of the layout."""


class _Range(Exception):
    """A number of the value is out of range."""


class _LayoutParser:
    """The state of one parse; ``value`` is the unread rest."""

    def __init__(self, layout: str, value: str) -> None:
        self.layout = layout
        self.whole = value
        self.value = value
        self.year = self.hour = self.minute = self.second = self.nanos = 0
        self.month = self.day = self.yday = -1
        self.half = ""
        self.utc = False
        self.offset: int | None = None
        self.zone = ""

    def read(self) -> GoTime:
        chunks = split_layout(self.layout)
        for index, (prefix, chunk) in enumerate(chunks):
            self._skip(prefix)
            if not chunk:
                break
            after = chunks[index + 1]
            fraction_next = not after[0] and after[1][:1] in (".", ",")
            hold = self.value
            try:
                self._read_chunk(chunk, fraction_next=bool(fraction_next))
            except _Range as error:
                raise self._failed(f": {error} out of range") from None
            except _Bad:
                raise self._mismatch(chunk, hold) from None
        if self.value:
            raise self._failed(": extra text: " + quote_text(self.value))
        return self._finish()

    def _skip(self, prefix: str) -> None:
        """Skip literal text; a run of spaces matches any run of spaces."""
        literal = prefix
        while literal:
            if literal[0] == " ":
                if self.value and self.value[0] != " ":
                    raise self._mismatch(prefix, self.value)
                literal = literal.lstrip(" ")
                self.value = self.value.lstrip(" ")
            elif self.value[:1] == literal[0]:
                literal = literal[1:]
                self.value = self.value[1:]
            else:
                raise self._mismatch(prefix, self.value)

    def _mismatch(self, element: str, rest: str) -> ExpressionFailed:
        return self._failed(
            f" as {quote_text(self.layout)}: cannot parse {quote_text(rest)}"
            f" as {quote_text(element)}"
        )

    def _failed(self, message: str) -> ExpressionFailed:
        reason = f"parsing time {quote_text(self.whole)}{message}"
        return ExpressionFailed("values.time", reason)

    def _read_chunk(self, chunk: str, *, fraction_next: bool) -> None:
        if chunk in _NUMBERS:
            self._read_number(chunk)
        elif chunk in ("5", "05"):
            self._read_second(fixed=chunk == "05", fraction_next=fraction_next)
        elif chunk in _NAMES:
            self._read_name(chunk)
        elif chunk in ("2006", "06"):
            self._read_year(chunk)
        elif chunk in ("002", "__2"):
            self._read_year_day(chunk)
        elif chunk in ("PM", "pm"):
            self._read_half(chunk)
        elif chunk == "MST":
            self._read_zone()
        elif chunk[0] in ".,":
            self._read_fraction(chunk)
        else:
            self._read_offset(chunk)

    def _take_number(self, *, fixed: bool) -> int:
        value = self.value
        count = 2 if value[1:2].isdigit() and value[1:2].isascii() else 1
        if not (value[:1].isdigit() and value[:1].isascii()) or (fixed and count == 1):
            raise _Bad
        self.value = value[count:]
        return int(value[:count])

    def _read_number(self, chunk: str) -> None:
        field, least, most, name = _NUMBERS[chunk]
        if chunk == "_2" and self.value[:1] == " ":
            self.value = self.value[1:]
        number = self._take_number(fixed=chunk[0] == "0")
        if not least <= number <= most:
            raise _Range(name)
        setattr(self, field, number)

    def _read_second(self, *, fixed: bool, fraction_next: bool) -> None:
        self.second = self._take_number(fixed=fixed)
        if self.second > 59:  # noqa: PLR2004 - seconds of a minute
            raise _Range("second")
        if not fraction_next:
            self._take_fraction()

    def _take_fraction(self) -> None:
        if self.value[:1] not in (".", ","):
            return
        digits = _leading_digits(self.value[1:])
        if digits:
            self.nanos = int(digits[:9].ljust(9, "0"))
            self.value = self.value[1 + len(digits) :]

    def _read_fraction(self, chunk: str) -> None:
        if chunk[1] == "9":
            self._take_fraction()
            return
        digits = self.value[1 : len(chunk)]
        fits = self.value[:1] in (".", ",") and len(digits) == len(chunk) - 1
        if not fits or _leading_digits(digits[:9]) != digits[:9]:
            raise _Bad
        self.nanos = int(digits[:9].ljust(9, "0"))
        self.value = self.value[len(chunk) :]

    def _read_name(self, chunk: str) -> None:
        names, length = _NAMES[chunk]
        for index, name in enumerate(names):
            abbreviation = name[:length]
            if self.value[: len(abbreviation)].lower() == abbreviation.lower():
                self.value = self.value[len(abbreviation) :]
                if names is _MONTHS:
                    self.month = index + 1
                return
        raise _Bad

    def _read_year(self, chunk: str) -> None:
        digits = self.value[: len(chunk)]
        body = digits[1:] if len(chunk) == 2 and digits[:1] in ("+", "-") else digits  # noqa: PLR2004 - "06"
        if len(digits) < len(chunk) or _leading_digits(body) != body:
            raise _Bad
        self.value = self.value[len(chunk) :]
        self.year = int(digits)
        if len(chunk) == 2:  # noqa: PLR2004 - "06"
            self.year += 1900 if self.year >= 69 else 2000  # noqa: PLR2004 - Go's rule

    def _read_year_day(self, chunk: str) -> None:
        if chunk == "__2":
            for _ in range(2):
                self.value = self.value.removeprefix(" ")
        digits = _leading_digits(self.value[:3])
        if not digits or (chunk == "002" and len(digits) < 3):  # noqa: PLR2004 - digits
            raise _Bad
        self.yday = int(digits)
        self.value = self.value[len(digits) :]

    def _read_half(self, chunk: str) -> None:
        half = self.value[:2]
        if half not in (chunk, "A" + chunk[1] if chunk == "PM" else "a" + chunk[1]):
            raise _Bad
        self.half = half.upper()
        self.value = self.value[2:]

    def _read_zone(self) -> None:
        if self.value.startswith("UTC"):
            self.utc = True
            self.value = self.value[3:]
            return
        match = _ZONE.match(self.value)
        zone = match.group() if match else ""
        length = len(zone)
        if zone == "GMT":
            length += _signed_hours_length(self.value[3:])
        elif zone[:1] in ("+", "-"):
            length = _signed_hours_length(self.value)
        elif (
            length in _ZONE_LENGTHS and _capitals(self.value) > length
        ) or length == len("ABCDEF"):
            length = 0
        if not length:
            raise _Bad
        self.zone, self.value = self.value[:length], self.value[length:]

    def _read_offset(self, chunk: str) -> None:
        if chunk[0] == "Z" and self.value[:1] == "Z":
            self.utc = True
            self.value = self.value[1:]
            return
        match = _OFFSETS[chunk[1:]].match(self.value)
        if match is None:
            raise _Bad
        sign, *parts = match.groups()
        hours, minutes, seconds = (int(part or "0") for part in parts)
        for number, most, name in (
            (hours, 24, "hour"),
            (minutes, 60, "minute"),
            (seconds, 60, "second"),
        ):
            if number > most:
                raise _Range("time zone offset " + name)
        offset = (hours * 60 + minutes) * 60 + seconds
        self.offset = -offset if sign == "-" else offset
        self.value = self.value[match.end() :]

    def _finish(self) -> GoTime:
        if self.half == "PM" and self.hour < 12:  # noqa: PLR2004 - noon
            self.hour += 12
        elif self.half == "AM" and self.hour == 12:  # noqa: PLR2004 - midnight
            self.hour = 0
        self._settle_date()
        offset = self.offset or 0
        if self.zone[:3] == "GMT" and len(self.zone) > 3:  # noqa: PLR2004 - GMT+3
            seconds = self._seconds()
            return GoTime(seconds, self.nanos, int(self.zone[3:]) * 3600)
        # In Go, -1 means "no offset", so -00:00:01 means "no offset", too.
        if self.utc or offset == -1:
            offset = 0
        return GoTime(self._seconds() - offset, self.nanos, offset)

    def _seconds(self) -> int:
        days = days_before(self.year, self.month, self.day) - EPOCH_DAYS
        return days * DAY_S + self.hour * 3600 + self.minute * 60 + self.second

    def _settle_date(self) -> None:
        if self.yday >= 0:
            most = 366 if is_leap(self.year) else 365
            if not 1 <= self.yday <= most:
                raise self._failed(": day-of-year out of range")
            start = days_before(self.year, 1, 1)
            _, month, day = date_of(start + self.yday - 1)
            if self.month >= 0 and self.month != month:
                raise self._failed(": day-of-year does not match month")
            if self.day >= 0 and self.day != day:
                raise self._failed(": day-of-year does not match day")
            self.month, self.day = month, day
        self.month = 1 if self.month < 0 else self.month
        self.day = 1 if self.day < 0 else self.day
        if not 1 <= self.day <= days_in(self.year, self.month):
            raise self._failed(": day out of range")


_NUMBERS: Final = {
    "1": ("month", 1, 12, "month"),
    "01": ("month", 1, 12, "month"),
    "2": ("day", 0, 99, "day"),
    "_2": ("day", 0, 99, "day"),
    "02": ("day", 0, 99, "day"),
    "15": ("hour", 0, 23, "hour"),
    "3": ("hour", 0, 12, "hour"),
    "03": ("hour", 0, 12, "hour"),
    "4": ("minute", 0, 59, "minute"),
    "04": ("minute", 0, 59, "minute"),
}
_NAMES: Final = {
    "January": (_MONTHS, None),
    "Jan": (_MONTHS, 3),
    "Monday": (_DAYS, None),
    "Mon": (_DAYS, 3),
}


def _leading_digits(value: str) -> str:
    end = 0
    while end < len(value) and "0" <= value[end] <= "9":
        end += 1
    return value[:end]


def _capitals(value: str) -> int:
    count = 0
    while count < min(len(value), 6) and "A" <= value[count] <= "Z":
        count += 1
    return count


def _signed_hours_length(value: str) -> int:
    digits = _leading_digits(value[1:20]) if value[:1] in ("+", "-") else ""
    return 1 + len(digits) if digits and int(digits) <= 23 else 0  # noqa: PLR2004 - hours
