"""Schedules compared with robfig/cron v3.0.1: parsing and next runs.

The expected values are answers of that program (ParseStandard, then Next three times).
"""

from calendar import timegm
from datetime import UTC, datetime

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import SCHEDULE_CHARACTERS_MAX
from kyverno_mp.values.cron import parse_schedule

RUNS = [
    (
        "2024-02-27T23:59:30",
        "*/5 * * * *",
        "2024-02-28T00:00:00 2024-02-28T00:05:00 2024-02-28T00:10:00",
    ),
    (
        "2024-01-01T00:00:00",
        "0 0 29 2 *",
        "2024-02-29T00:00:00 2028-02-29T00:00:00 2032-02-29T00:00:00",
    ),
    (
        "2024-01-30T10:00:00",
        "0 0 1,15 jan-mar *",
        "2024-02-01T00:00:00 2024-02-15T00:00:00 2024-03-01T00:00:00",
    ),
    (
        "2024-01-01T00:00:00",
        "0 12 13 * fri",
        "2024-01-05T12:00:00 2024-01-12T12:00:00 2024-01-13T12:00:00",
    ),
    (
        "2024-01-01T00:00:00",
        "0 12 */2 * fri",
        "2024-01-01T12:00:00 2024-01-03T12:00:00 2024-01-05T12:00:00",
    ),
    (
        "2024-01-01T00:00:00",
        "0 12 * * mon-fri/2",
        "2024-01-01T12:00:00 2024-01-03T12:00:00 2024-01-05T12:00:00",
    ),
    (
        "2024-01-01T00:00:00",
        "5/20 * * * *",
        "2024-01-01T00:05:00 2024-01-01T00:25:00 2024-01-01T00:45:00",
    ),
    (
        "2024-01-01T00:00:00",
        "@hourly",
        "2024-01-01T01:00:00 2024-01-01T02:00:00 2024-01-01T03:00:00",
    ),
    (
        "2024-03-03T12:00:00",
        "@weekly",
        "2024-03-10T00:00:00 2024-03-17T00:00:00 2024-03-24T00:00:00",
    ),
    (
        "2024-01-31T00:00:00",
        "@monthly",
        "2024-02-01T00:00:00 2024-03-01T00:00:00 2024-04-01T00:00:00",
    ),
    (
        "2024-06-01T00:00:00",
        "@yearly",
        "2025-01-01T00:00:00 2026-01-01T00:00:00 2027-01-01T00:00:00",
    ),
    (
        "2024-06-01T00:00:07",
        "@every 1h30m",
        "2024-06-01T01:30:07 2024-06-01T03:00:07 2024-06-01T04:30:07",
    ),
    (
        "2024-06-01T00:00:07",
        "@every 300ms",
        "2024-06-01T00:00:08 2024-06-01T00:00:09 2024-06-01T00:00:10",
    ),
    (
        "2024-06-01T00:00:07",
        "@every 1.9s",
        "2024-06-01T00:00:08 2024-06-01T00:00:09 2024-06-01T00:00:10",
    ),
    (
        "2024-06-01T00:00:07",
        "@every -5s",
        "2024-06-01T00:00:08 2024-06-01T00:00:09 2024-06-01T00:00:10",
    ),
    (
        "2024-03-30T00:00:00",
        "TZ=Europe/Berlin 30 2 * * *",
        "2024-03-30T01:30:00 2024-04-01T00:30:00 2024-04-02T00:30:00",
    ),
    (
        "2024-10-26T00:00:00",
        "TZ=Europe/Berlin 30 2 * * *",
        "2024-10-26T00:30:00 2024-10-27T00:30:00 2024-10-27T01:30:00",
    ),
    (
        "2024-03-09T00:00:00",
        "CRON_TZ=America/New_York 0 * * * *",
        "2024-03-09T01:00:00 2024-03-09T02:00:00 2024-03-09T03:00:00",
    ),
    (
        "2018-11-03T12:00:00",
        "TZ=America/Sao_Paulo 0 0 * * *",
        "2018-11-05T02:00:00 2018-11-06T02:00:00 2018-11-07T02:00:00",
    ),
    (
        "2018-11-03T12:00:00",
        "TZ=America/Sao_Paulo 30 1 * * *",
        "2018-11-04T03:30:00 2018-11-05T03:30:00 2018-11-06T03:30:00",
    ),
    (
        "2024-01-01T00:00:00",
        "TZ=Asia/Kolkata 0 9 * * *",
        "2024-01-01T03:30:00 2024-01-02T03:30:00 2024-01-03T03:30:00",
    ),
    (
        "2024-01-01T00:00:00",
        "TZ=Asia/Tokyo @daily",
        "2024-01-01T15:00:00 2024-01-02T15:00:00 2024-01-03T15:00:00",
    ),
    (
        "2024-01-01T00:00:00",
        "TZ= 0 9 * * *",
        "2024-01-01T09:00:00 2024-01-02T09:00:00 2024-01-03T09:00:00",
    ),
    ("2024-01-01T00:00:00", "0 0 30 2 *", "never"),
    ("2024-01-01T00:00:00", ", * * * *", "never"),
    (
        "2024-01-01T00:00:00",
        "1,,2 * * * *",
        "2024-01-01T00:01:00 2024-01-01T00:02:00 2024-01-01T01:01:00",
    ),
    (
        "2024-01-01T00:00:00",
        "*-5 * * * *",
        "2024-01-01T00:01:00 2024-01-01T00:02:00 2024-01-01T00:03:00",
    ),
    (
        "2024-01-01T00:00:00",
        "+3 * * * ?",
        "2024-01-01T00:03:00 2024-01-01T01:03:00 2024-01-01T02:03:00",
    ),
]
REFUSED = [
    "TZ=Nowhere/City 0 9 * * *",
    "TZ=UTC",
    "* * * * * *",
    "-1 * * * *",
    "5-1 * * * *",
    "* * 0 * *",
    "* * * foo *",
    "1-2-3 * * * *",
    "1/2/3 * * * *",
    "@every",
    "@every 5",
    "@Daily",
    " @daily",
    "*/0 * * * *",
    "60 * * * *",
    "* * * * 7",
    "",
]


def seconds(text: str) -> int:
    return timegm(datetime.fromisoformat(text).timetuple())


def shown(at_s: int | None) -> str:
    if at_s is None:
        return "never"
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize(("after", "text", "expected"), RUNS)
def test_schedule_equals_robfigs(after: str, text: str, expected: str) -> None:
    """Otherwise a clean-up would run at the wrong time, or not at all."""
    schedule = parse_schedule(text)
    at_s: int | None = seconds(after)
    found = []
    for _ in range(3):
        assert at_s is not None
        at_s = schedule.next_s(at_s)
        found.append(shown(at_s))
        if at_s is None:
            break
    assert expected == " ".join(found)


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_schedules_equal_robfigs(text: str) -> None:
    """Otherwise a policy would be admitted that never runs."""
    with pytest.raises(ExpressionFailed) as caught:
        parse_schedule(text)
    assert caught.value.code == "values.cron"


def test_day_that_begins_at_one_has_its_runs() -> None:
    """Robfig skips the day on which summer time begins at midnight, east of Greenwich.

    Beirut, 31 March 2019: the clocks went from 24:00 to 01:00.
    """
    schedule = parse_schedule("TZ=Asia/Beirut 0 12 31 3 *")
    assert shown(schedule.next_s(seconds("2019-03-01"))) == "2019-03-31T09:00:00"


def test_length_is_bounded() -> None:
    """A schedule of 3 MB took ten seconds to parse."""
    longest = ",".join(["0"] * 496) + " * * * *"
    assert len(longest) == SCHEDULE_CHARACTERS_MAX - 1
    parse_schedule(longest)
    for text in (longest + "  ", "@every " + "1h" * 500, "TZ=" + "x" * 1_000_000):
        with pytest.raises(ExpressionFailed, match="at most 1000 characters"):
            parse_schedule(text)
