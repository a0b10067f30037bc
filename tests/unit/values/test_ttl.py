"""Test the values of the ttl label against upstream."""

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.gotime import GoTime
from kyverno_mp.values.ttl import parse_ttl

MINUTE = 60 * 10**9
DAY = 24 * 60 * MINUTE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", 30 * 10**9),
        ("1h30m", 90 * MINUTE),
        ("-5m", -5 * MINUTE),
        ("1d", DAY),
        ("2w", 14 * DAY),
        ("1d12h", DAY + 720 * MINUTE),
        ("3days", 3 * DAY),
        ("2minutes", 2 * MINUTE),
        ("4Weeks", 28 * DAY),
        ("1D", DAY),
        ("5wks", None),
        ("5", None),
        ("x", None),
        ("99999999999999999999d", None),
        ("2026-11-21", "2026-11-21T00:00:00Z"),
        ("2026-11-21T101530Z", "2026-11-21T10:15:30Z"),
        ("2026-11-21T10:15:30Z", None),
        ("2026-13-01", None),
    ],
)
def test_ttl(text: str, expected: object) -> None:
    try:
        found = parse_ttl(text)
    except ExpressionFailed:
        assert expected is None
        return
    assert (found.rfc3339() if isinstance(found, GoTime) else found) == expected
