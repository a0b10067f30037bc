"""Represent an instant like Go's time.Time, compute with it and print RFC 3339.

Room: values. Takes: seconds and offsets, datetimes. Gives: GoTime values; years 0 to
9999 and beyond, which datetime cannot represent. Next: values/go/gotime_parse.py,
expr/jmespath and expr/cel (time functions).
May touch: nothing outside its arguments; the current time is passed in.
Source: docs/behaviour/engine 9.2 (time_*); Go's package time.
"""

from datetime import UTC, datetime
from typing import Final, NamedTuple

from kyverno_mp.values.go.gocalendar import DAY_S, EPOCH_DAYS, date_of

_BILLION: Final = 1_000_000_000
_ZERO_S: Final = -62_135_596_800
"""Go's zero time, 0001-01-01, in Unix seconds."""
_INT64_MAX: Final = (1 << 63) - 1


class GoTime(NamedTuple):
    """An instant and its UTC offset for printing; ``nanos`` is 0 to 999999999."""

    seconds: int
    nanos: int
    offset_s: int = 0

    def since(self, earlier: "GoTime") -> int:
        """Return the nanoseconds since ``earlier``, clamped to int64 like Go's Sub."""
        difference = (self.seconds - earlier.seconds) * _BILLION
        difference += self.nanos - earlier.nanos
        return max(-_INT64_MAX - 1, min(_INT64_MAX, difference))

    def plus(self, nanoseconds: int) -> "GoTime":
        """Add a duration and keep the offset."""
        seconds, nanos = divmod(self.nanos + nanoseconds, _BILLION)
        return GoTime(self.seconds + seconds, nanos, self.offset_s)

    def truncated(self, nanoseconds: int) -> "GoTime":
        """Round down to a multiple of a duration, counted from Go's zero time."""
        if nanoseconds <= 0:
            return self
        total = (self.seconds - _ZERO_S) * _BILLION + self.nanos
        return self.plus(-(total % nanoseconds))

    def utc(self) -> "GoTime":
        """Return the same instant in UTC."""
        return GoTime(self.seconds, self.nanos)

    def before(self, go_time: "GoTime") -> bool:
        """Return whether this instant is earlier, independent of the offsets."""
        return (self.seconds, self.nanos) < (go_time.seconds, go_time.nanos)

    def civil(self) -> tuple[int, int, int, int, int, int]:
        """Return year, month, day, hour, minute and second at the offset."""
        days, rest = divmod(self.seconds + self.offset_s, DAY_S)
        hour, rest = divmod(rest, 3600)
        return *date_of(days + EPOCH_DAYS), hour, *divmod(rest, 60)

    def weekday(self) -> int:
        """Return the day of the week at the offset; Sunday is 0."""
        return ((self.seconds + self.offset_s) // DAY_S + 4) % 7

    def rfc3339(self) -> str:
        """Print without a fraction, with ``Z`` for offset zero."""
        year, month, day, hour, minute, second = self.civil()
        year_digits = f"{year:04d}" if year >= 0 else f"-{-year:04d}"
        moment = (
            f"{year_digits}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}"
        )
        if not self.offset_s:
            return moment + "Z"
        # Go truncates towards zero, so the seconds of an offset are lost.
        minutes = abs(self.offset_s) // 60
        sign = "-" if self.offset_s < 0 and minutes else "+"
        return f"{moment}{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def from_datetime(moment: datetime) -> GoTime:
    """Convert an aware datetime and keep its offset."""
    utc = moment.astimezone(UTC)
    days = utc.toordinal() + 366 - EPOCH_DAYS - 1
    seconds = days * DAY_S + utc.hour * 3600 + utc.minute * 60 + utc.second
    shift = moment.utcoffset()
    offset = int(shift.total_seconds()) if shift is not None else 0
    return GoTime(seconds, utc.microsecond * 1000, offset)


def unix_ns(moment: datetime) -> int:
    """Return an aware datetime in nanoseconds since the Unix epoch."""
    since = from_datetime(moment)
    return since.seconds * _BILLION + since.nanos


def from_unix(seconds: int) -> GoTime:
    """Convert Unix seconds to a UTC time; they wrap around like Go's int64 seconds."""
    since_zero = seconds - _ZERO_S
    wrapped = (since_zero + _INT64_MAX + 1) % (1 << 64) - _INT64_MAX - 1
    return GoTime(wrapped + _ZERO_S, 0)
