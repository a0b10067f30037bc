"""Count days of the proleptic Gregorian calendar.

Room: values. Takes: year, month, day. Gives: days since 0000-01-01, and back. Next:
values/go/gotime.py, values/go/gotime_parse.py.
Source: Go's package time.
"""

from typing import Final

DAY_S: Final = 86_400
EPOCH_DAYS: Final = 719_528
"""Days from 0000-01-01 to 1970-01-01."""


def is_leap(year: int) -> bool:
    """Return whether February has 29 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(year: int, month: int) -> int:
    """Return the number of days of a month."""
    if month == 2:  # noqa: PLR2004 - February
        return 29 if is_leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def days_before(year: int, month: int, day: int) -> int:
    """Return the number of days since 0000-01-01."""
    shifted = year - 1 if month <= 2 else year  # noqa: PLR2004 - the year begins in March
    era, rest = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + rest * 365 + rest // 4 - rest // 100 + of_year + 60


def date_of(days: int) -> tuple[int, int, int]:
    """Return year, month and day: the inverse of ``days_before``."""
    era, rest = divmod(days - 60, 146_097)
    year = (rest - rest // 1460 + rest // 36_524 - rest // 146_096) // 365
    of_year = rest - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9  # noqa: PLR2004 - March first
    return era * 400 + year + (1 if month <= 2 else 0), month, day  # noqa: PLR2004
