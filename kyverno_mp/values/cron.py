"""Parse the schedule of a clean-up policy and compute its next run.

Room: values. Takes: a cron expression, an instant in Unix seconds. Gives: Schedule,
whose ``next_s`` returns the following instant. Next: policy/checks/cleanup.py rejects
strings that do not parse; the room cleanup schedules policies with the same parser.
May touch: the time zone database (zoneinfo); the current time is passed in.
Source: docs/behaviour/controllers 7 (Cron); robfig/cron v3.0.1 parser.go, spec.go,
constantdelay.go.

Five fields, descriptors and ``@every``, all after an optional ``TZ=`` or ``CRON_TZ=``.
Without a zone, times are UTC.
"""

import string
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import SCHEDULE_CHARACTERS_MAX
from kyverno_mp.values.go.duration import duration_error, parse_duration
from kyverno_mp.values.go.gocalendar import DAY_S, EPOCH_DAYS, date_of, days_before

_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ALL: Final = ("*", "?")
_ZONES: Final = ("TZ=", "CRON_TZ=")
_EVERY: Final = "@every "
_SECOND_NS: Final = 10**9
_INT64_DIGITS: Final = 19
_YEARS_MAX: Final = 5
"""If a schedule has no time in the next five years, e.g. 30 February, it never runs."""
SCHEDULE_TOO_LONG: Final = f"must have at most {SCHEDULE_CHARACTERS_MAX} characters"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Bounds:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Bounds("minute", 0, 59),
    _Bounds("hour", 0, 23),
    _Bounds("day of month", 1, 31),
    _Bounds("month", 1, 12, _MONTHS),
    _Bounds("day of week", 0, 6, _DAYS),
)
_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True)
class Every:
    """``@every <duration>``: whole seconds, at least one."""

    pause_s: int

    def next_s(self, after_s: int) -> int | None:
        """Return the next instant after ``after_s``. Unit: Unix seconds."""
        return after_s + self.pause_s


@dataclass(frozen=True, slots=True)
class _Field:
    values: frozenset[int]
    is_all: bool
    """Whether the field contains ``*`` or ``?``, so that it does not restrict days."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Five fields in a time zone; days of the month and of the week are combined.

    If one of these fields is ``*``, a day must match both, otherwise at least one.
    """

    minutes: _Field
    hours: _Field
    days: _Field
    months: _Field
    weekdays: _Field
    zone: ZoneInfo | None = None

    def next_s(self, after_s: int) -> int | None:
        """Return the next instant after ``after_s``; None if there is none.

        Unit: Unix seconds. As in robfig/cron, nothing runs in an hour that daylight
        saving time skips, and a repeated hour runs twice.
        """
        walk = _Walk(after_s + 1, self.zone)
        last_year = walk.date()[0] + _YEARS_MAX
        while walk.date()[0] <= last_year:
            if (
                self._find_month(walk)
                and self._find_day(walk)
                and self._find_hour(walk)
                and self._find_minute(walk)
            ):
                return walk.at_s
        return None

    def _find_month(self, walk: "_Walk") -> bool:
        """Move to a month of the schedule; return False if the year changed."""
        while walk.date()[1] not in self.months.values:
            year, month, _ = walk.date()
            walk.begin(year, month + 1, 1)
            if walk.date()[1] == 1:
                return False
        return True

    def _find_day(self, walk: "_Walk") -> bool:
        while not self._has_day(walk):
            year, month, day = walk.date()
            walk.begin(year, month, day + 1)
            if walk.date()[2] == 1:
                return False
        return True

    def _has_day(self, walk: "_Walk") -> bool:
        of_month = walk.date()[2] in self.days.values
        of_week = walk.weekday() in self.weekdays.values
        if self.days.is_all or self.weekdays.is_all:
            return of_month and of_week
        return of_month or of_week

    def _find_hour(self, walk: "_Walk") -> bool:
        while walk.clock()[0] not in self.hours.values:
            walk.begin_hour()
            walk.at_s += 3600
            if walk.clock()[0] == 0:
                return False
        return True

    def _find_minute(self, walk: "_Walk") -> bool:
        if walk.at_s % 60:
            walk.at_s += 60 - walk.at_s % 60
            if walk.clock()[1] == 0:
                return False
        while walk.clock()[1] not in self.minutes.values:
            walk.at_s += 60
            if walk.clock()[1] == 0:
                return False
        return True


Schedule = Every | Calendar


class _Walk:
    """An instant that moves forward, with its local time in a time zone."""

    def __init__(self, at_s: int, zone: ZoneInfo | None) -> None:
        self.at_s = at_s
        self._zone = zone

    def date(self) -> tuple[int, int, int]:
        """Return year, month and day."""
        return date_of(self._local_s() // DAY_S + EPOCH_DAYS)

    def clock(self) -> tuple[int, int]:
        """Return hour and minute."""
        rest = self._local_s() % DAY_S
        return rest // 3600, rest % 3600 // 60

    def weekday(self) -> int:
        """Return the day of the week; Sunday is 0."""
        return (self._local_s() // DAY_S + 4) % 7

    def begin(self, year: int, month: int, day: int) -> None:
        """Go to the first moment of a day.

        Where daylight saving time begins at midnight, the day starts at one o'clock.
        robfig/cron skips such a day in zones east of Greenwich; we do not.
        """
        year, month = (year + 1, 1) if month > len(_MONTHS) else (year, month)
        local_s = (days_before(year, month, 1) + day - 1 - EPOCH_DAYS) * DAY_S
        offset_s = self._offset_s(local_s)
        if offset_s:
            offset_s = self._offset_s(local_s - offset_s)
        self.at_s = local_s - offset_s
        hour = self.clock()[0]
        if hour > 12:  # noqa: PLR2004 - the evening before
            self.at_s += (24 - hour) * 3600

    def begin_hour(self) -> None:
        """Go back to the start of the hour in local time."""
        self.at_s -= self._local_s() % 3600

    def _local_s(self) -> int:
        return self.at_s + self._offset_s(self.at_s)

    def _offset_s(self, at_s: int) -> int:
        if self._zone is None:
            return 0
        moment = (_EPOCH + timedelta(seconds=at_s)).astimezone(self._zone)
        offset = moment.utcoffset()
        return int(offset.total_seconds()) if offset is not None else 0


def parse_schedule(schedule: str) -> Schedule:
    """Parse a schedule. Raises: ExpressionFailed (``values.cron``) with the reason."""
    if len(schedule) > SCHEDULE_CHARACTERS_MAX:
        raise _failed(SCHEDULE_TOO_LONG)
    zone = None
    if schedule.startswith(_ZONES):
        head, blank, schedule = schedule.partition(" ")
        if not blank:
            raise _failed(f"no schedule after {head}")
        zone = _zone_of(head.partition("=")[2])
        schedule = schedule.strip()
    if schedule.startswith("@"):
        return _descriptor(schedule, zone)
    return _calendar(schedule, zone)


def _calendar(schedule: str, zone: ZoneInfo | None) -> Calendar:
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        raise _failed(f"expected exactly 5 fields, found {len(fields)}")
    minutes, hours, days, months, weekdays = (
        _field(part, bounds) for part, bounds in zip(fields, _FIELDS, strict=True)
    )
    return Calendar(minutes, hours, days, months, weekdays, zone)


def _descriptor(schedule: str, zone: ZoneInfo | None) -> Schedule:
    if schedule in _DESCRIPTORS:
        return _calendar(_DESCRIPTORS[schedule], zone)
    if not schedule.startswith(_EVERY):
        raise _failed(f"unrecognized descriptor: {schedule}")
    lasting = schedule.removeprefix(_EVERY)
    pause_ns = parse_duration(lasting)
    if pause_ns is None:
        raise _failed(f"failed to parse duration {lasting}: {duration_error(lasting)}")
    return Every(max(1, pause_ns // _SECOND_NS))


def _field(field: str, bounds: _Bounds) -> _Field:
    """Parse one field: ranges, separated by commas.

    KYVERNO: empty ranges are ignored; a field without any range never matches.
    """
    values: set[int] = set()
    is_all = False
    for part in field.split(","):
        if part:
            part_values, has_star = _range(part, bounds)
            values |= part_values
            is_all = is_all or has_star
    return _Field(frozenset(values), is_all)


def _range(part: str, bounds: _Bounds) -> tuple[set[int], bool]:
    """Parse ``<first>[-<last>][/<step>]``; return its values and whether it is ``*``.

    KYVERNO: everything after ``*-`` is ignored.
    """
    span, *steps = part.split("/")
    first, *lasts = span.split("-")
    is_all = first in _ALL
    if is_all:
        low, high = bounds.low, bounds.high
    else:
        low = _number(first, bounds)
        high = _number(lasts[0], bounds) if lasts else low
        if len(lasts) > 1:
            raise _failed(f"too many hyphens: {part}")
    step = 1
    if len(steps) > 1:
        raise _failed(f"too many slashes: {part}")
    if steps:
        step = _whole(steps[0])
        high = high if lasts else bounds.high
        is_all = is_all and step <= 1
    if not bounds.low <= low <= high <= bounds.high:
        limits = f"{bounds.low}-{bounds.high}"
        raise _failed(f"{bounds.name}: {part} is not a range within {limits}")
    if step == 0:
        raise _failed(f"step of range should be a positive number: {part}")
    return set(range(low, high + 1, step)), is_all


def _number(value: str, bounds: _Bounds) -> int:
    name = value.lower()
    if name in bounds.names:
        return bounds.names.index(name) + bounds.low
    return _whole(value)


def _whole(value: str) -> int:
    """Parse like Go's Atoi, without negative numbers."""
    digits = value[1:] if value[:1] in ("+", "-") and value else value
    is_number = digits and set(digits) <= set(string.digits)
    if not is_number or len(digits) > _INT64_DIGITS:
        raise _failed(f"failed to parse int from {value}")
    if value[0] == "-" and int(digits):
        raise _failed(f"negative number not allowed: {value}")
    return int(digits)


def _zone_of(name: str) -> ZoneInfo | None:
    """Return the time zone; None means UTC."""
    if name in ("", "UTC", "Local"):
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _failed(f"provided bad location {name}") from error


def _failed(reason: str) -> ExpressionFailed:
    return ExpressionFailed("values.cron", reason)
