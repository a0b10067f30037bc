"""The annotations of PolicyExceptions: when they end, and why they exist.

A failure means: an exception lasts longer than its author wrote, or for ever.
"""

from datetime import UTC, datetime

import pytest

from kyverno_mp.policy.expiry import (
    EXPIRES,
    REASON,
    expiry_ns,
    expiry_problems,
    standing,
    written,
)
from kyverno_mp.program.generate.labels import COPIES_TRACKING

END = "2027-01-31T00:00:00Z"
END_NS = int(datetime(2027, 1, 31, tzinfo=UTC).timestamp()) * 10**9
HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
ANY_NOW_NS = 0


@pytest.mark.parametrize(
    ("annotations", "expires_at", "expected_ns"),
    [
        ({}, "", None),
        ({REASON: "the chart of the vendor is older"}, "", None),
        ({COPIES_TRACKING: "true", "team": "a"}, "", None),
        ({EXPIRES: END}, "", END_NS),
        ({EXPIRES: "2027-01-31T01:00:00+01:00"}, "", END_NS),
        ({}, END, END_NS),
        # The earlier time counts.
        ({EXPIRES: END}, "2027-01-30T23:00:00Z", END_NS - HOUR_NS),
        ({EXPIRES: "2027-01-30T23:00:00Z"}, END, END_NS - HOUR_NS),
    ],
)
def test_an_exception_ends_at_the_earlier_time(
    annotations: dict[str, str], expires_at: str, expected_ns: int | None
) -> None:
    assert expiry_ns(annotations, expires_at) == expected_ns
    assert not list(expiry_problems(annotations, expires_at))


@pytest.mark.parametrize(
    ("annotations", "expires_at", "path"),
    [
        ({EXPIRES: ""}, "", EXPIRES),
        ({EXPIRES: "2027-01-31"}, "", EXPIRES),
        ({EXPIRES: "2027-02-30T00:00:00Z"}, "", EXPIRES),
        ({EXPIRES: "never"}, "", EXPIRES),
        ({EXPIRES: "9" * 100_000}, END, EXPIRES),
        ({EXPIRES: END}, "soon", "spec.expiresAt"),
        ({"kyverno-mp.io/expire": END}, "", "kyverno-mp.io/expire"),
        ({"kyverno-mp.io/Expires": END}, "", "kyverno-mp.io/Expires"),
        ({EXPIRES: END, REASON: " "}, "", REASON),
        ({EXPIRES: END, REASON: "a\x1b[31mb"}, "", REASON),
        ({REASON: "a" * 513}, "", REASON),
    ],
)
def test_an_invalid_annotation_ends_the_exception(
    annotations: dict[str, str], expires_at: str, path: str
) -> None:
    (problem,) = expiry_problems(annotations, expires_at)
    assert problem.code == "policy.expiry"
    assert path in problem.path
    assert len(problem.upstream) < 500
    expires_at_ns = expiry_ns(annotations, expires_at)
    assert expires_at_ns is not None
    assert expires_at_ns < ANY_NOW_NS
    assert standing(expires_at_ns, ANY_NOW_NS) == "invalid"


@pytest.mark.parametrize(
    ("left_ns", "expected"),
    [
        (8 * DAY_NS, "lasting"),
        (7 * DAY_NS, "expiring"),
        (1, "expiring"),
        (0, "expired"),
        (-DAY_NS, "expired"),
    ],
)
def test_an_exception_is_reported_a_week_before(left_ns: int, expected: str) -> None:
    assert standing(END_NS, END_NS - left_ns) == expected


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_far_times_have_a_standing(year: str) -> None:
    expires_at_ns = expiry_ns({EXPIRES: f"{year}-01-01T00:00:00Z"})
    expected = "expired" if year == "0001" else "lasting"
    assert standing(expires_at_ns, END_NS) == expected


def test_a_time_is_written_as_annotations_have_it() -> None:
    assert written(END_NS) == END
