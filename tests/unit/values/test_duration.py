"""Durations: texts that Go parses, rejects and prints."""

import pytest

from kyverno_mp.values.go.duration import duration_error, duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1h", "1h0m0s"),
        ("1h5m", "1h5m0s"),
        ("100s", "1m40s"),
        ("1.5s", "1.5s"),
        (".5s", "500ms"),
        ("-2m", "-2m0s"),
        ("0", "0s"),
        ("+0", "0s"),
        ("1us", "1µs"),
        ("1500ns", "1.5µs"),
        ("9223372036854775807ns", "2562047h47m16.854775807s"),
        ("-9223372036854775808ns", "-2562047h47m16.854775808s"),
    ],
)
def test_parse_and_print(text: str, shown: str) -> None:
    nanoseconds = parse_duration(text)
    assert nanoseconds is not None
    assert duration_text(nanoseconds) == shown


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", 'time: invalid duration ""'),
        ("10", 'time: missing unit in duration "10"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("s", 'time: invalid duration "s"'),
        (".s", 'time: invalid duration ".s"'),
        ("1h ", 'time: unknown unit "h " in duration "1h "'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
    ],
)
def test_invalid_text_has_gos_error(text: str, error: str) -> None:
    assert parse_duration(text) is None
    assert duration_error(text) == error
