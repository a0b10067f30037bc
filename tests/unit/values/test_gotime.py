"""Test times with Go layouts."""

from datetime import datetime, timedelta, timezone

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.gotime import from_datetime
from kyverno_mp.values.go.gotime_parse import RFC3339, parse_time


@pytest.mark.parametrize(
    ("layout", "value", "shown"),
    [
        ("3:04PM", "5:06PM", "0000-01-01T17:06:00Z"),
        ("2006-01-02", "2024-03-01", "2024-03-01T00:00:00Z"),
        (RFC3339, "2021-01-02T15:04:05-07:00", "2021-01-02T15:04:05-07:00"),
        (RFC3339, "2024-02-03T1:00:00,5Z", "2024-02-03T01:00:00Z"),
        (
            "Mon Jan _2 15:04:05 2006",
            "Tue Mar  5 01:02:03 2024",
            "2024-03-05T01:02:03Z",
        ),
        (
            "Mon, 02 Jan 2006 15:04:05 MST",
            "Tue, 05 Mar 2024 01:02:03 CET",
            "2024-03-05T01:02:03Z",
        ),
        ("2006 002", "2024 060", "2024-02-29T00:00:00Z"),
        ("02 Jan 06", "01 feb 70", "1970-02-01T00:00:00Z"),
    ],
)
def test_parse(layout: str, value: str, shown: str) -> None:
    assert parse_time(layout, value).rfc3339() == shown


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("x", f'parsing time "x" as "{RFC3339}": cannot parse "x" as "2006"'),
        (
            "2024-13-01T00:00:00Z",
            'parsing time "2024-13-01T00:00:00Z": month out of range',
        ),
        (
            "2023-02-29T00:00:00Z",
            'parsing time "2023-02-29T00:00:00Z": day out of range',
        ),
        (
            "2024-02-03T00:00:00Zx",
            'parsing time "2024-02-03T00:00:00Zx": extra text: "x"',
        ),
    ],
)
def test_errors_have_gos_texts(value: str, error: str) -> None:
    with pytest.raises(ExpressionFailed) as raised:
        parse_time(RFC3339, value)
    assert raised.value.message == error


def test_arithmetic() -> None:
    moment = parse_time(RFC3339, "2024-01-01T12:34:56+05:30")
    assert moment.truncated(3_600_000_000_000).rfc3339() == "2024-01-01T12:30:00+05:30"
    assert moment.plus(-1_000_000_000).rfc3339() == "2024-01-01T12:34:55+05:30"
    assert moment.utc().rfc3339() == "2024-01-01T07:04:56Z"
    assert moment.weekday() == 1


def test_from_datetime_keeps_the_offset() -> None:
    zone = timezone(timedelta(hours=2))
    shown = from_datetime(datetime(2024, 2, 29, 1, 3, 4, tzinfo=zone)).rfc3339()
    assert shown == "2024-02-29T01:03:04+02:00"
