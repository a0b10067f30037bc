"""Parse the value of the label ``cleanup.kyverno.io/ttl``: a duration or a date.

Room: values. Takes: a string. Gives: nanoseconds after creation, or an instant. Next:
the webhook, the clean-up of expired objects.
Source: docs/behaviour/controllers 7 (TTL); k8s.io/kube-openapi strfmt.ParseDuration.
"""

from typing import Final

import re2

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.go.gotime import GoTime
from kyverno_mp.values.go.gotime_parse import parse_time

LABEL: Final = "cleanup.kyverno.io/ttl"
_LAYOUTS: Final = ("2006-01-02T150405Z", "2006-01-02")
"""K8S: label values do not contain colons."""
_TERM: Final = re2.compile(r"(\d+)\s*([A-Za-zµ]+)")
_SECOND: Final = 10**9
_UNITS: Final = (
    (("ns", "nano"), 1),
    (("us", "µs", "micro"), 1_000),
    (("ms", "milli"), 1_000_000),
    (("s", "sec"), _SECOND),
    (("m", "min"), 60 * _SECOND),
    (("h", "hr", "hour"), 3_600 * _SECOND),
    (("d", "day"), 86_400 * _SECOND),
    (("w", "wk", "week"), 7 * 86_400 * _SECOND),
)
"""The names of each unit; the last name is also a prefix of longer words, such as
``seconds``."""
_INT64_END: Final = 1 << 63


def parse_ttl(ttl: str) -> int | GoTime:
    """Return nanoseconds after creation, or the instant.

    Raises: ExpressionFailed (``values.time``) with Go's text for the last attempt.
    """
    lasting = parse_duration(ttl)
    if lasting is None:
        lasting = _words(ttl)
    if lasting is not None:
        return lasting
    try:
        return parse_time(_LAYOUTS[0], ttl)
    except ExpressionFailed:
        return parse_time(_LAYOUTS[1], ttl)


def _words(ttl: str) -> int | None:
    """Sum the terms with known units; None if there are none.

    KYVERNO: everything between the terms, including signs, is ignored.
    """
    lifetime = None
    for number, word in _TERM.findall(ttl):
        if len(number) > 19 or int(number) >= _INT64_END:  # noqa: PLR2004 - digits of int64
            return None
        unit = word.lower()
        for names, nanoseconds in _UNITS:
            if unit in names or unit.startswith(names[-1]):
                total = (lifetime or 0) + int(number) * nanoseconds
                # Go's int64 wraps around.
                lifetime = (total + _INT64_END) % (2 * _INT64_END) - _INT64_END
    return lifetime
