"""Read when a PolicyException ends, and why it exists, from its annotations.

Room: policy. Takes: the annotations of an exception of either group, ``expiresAt``.
Gives: the time of its end, or why the annotations are invalid. Next:
compiler/rules/exceptions.py and compiler/cel_kinds/validating_policy.py (IR),
compiler/cel_kinds/exception_review.py (refusals).
Source: docs/exceptions.md; upstream has no such annotations, and its exceptions of
kyverno.io do not end.

SAFETY: an exception with an invalid annotation, also with an unknown name such as
``kyverno-mp.io/expire``, has no effect: otherwise it would last for ever.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from kyverno_mp.errors import InputError
from kyverno_mp.limits import EXCEPTION_REASON_CHARACTERS_MAX, EXCEPTION_WARNED_NS
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.go.gotime import GoTime
from kyverno_mp.values.go.gotime_parse import RFC3339, parse_time
from kyverno_mp.values.go.yaml_int import INT64_MAX, INT64_MIN

PREFIX: Final = "kyverno-mp.io/"
EXPIRES: Final = f"{PREFIX}expires"
REASON: Final = f"{PREFIX}reason"
NEVER_IN_EFFECT: Final = INT64_MIN
"""Earlier than any time that an annotation can have."""
LASTING: Final = "lasting"
EXPIRING: Final = "expiring"
EXPIRED: Final = "expired"
INVALID: Final = "invalid"
STANDINGS: Final = (LASTING, EXPIRING, EXPIRED, INVALID)
EXPIRES_AT: Final = "spec.expiresAt"
_NAMES: Final = (EXPIRES, REASON)
_OF_SOURCES: Final = f"{PREFIX}copies-tracking"
"""Exceptions can be sources of clones (program/generate/labels.py)."""
_TIME_EXPECTED: Final = "expected a time such as 2027-01-31T00:00:00Z"


def expiry_ns(annotations: Mapping[str, str], expires_at: str = "") -> int | None:
    """Return the Unix time from which an exception has no effect; None: it stays.

    ``expires_at``: the field of exceptions in CEL; the earlier time counts. The result
    is the nearest time that an int64 can hold: the years 1677 to 2262.
    """
    if next(expiry_problems(annotations, expires_at), None) is not None:
        return NEVER_IN_EFFECT
    times = [_time_ns(time) for time in _times(annotations, expires_at).values()]
    return min(times, default=None)


def standing(expires_at_ns: int | None, now_ns: int) -> str:
    """Return in which state an exception is: lasting, expiring, expired or invalid."""
    if expires_at_ns is None:
        return LASTING
    if expires_at_ns == NEVER_IN_EFFECT:
        return INVALID
    if expires_at_ns <= now_ns:
        return EXPIRED
    is_near = expires_at_ns - now_ns <= EXCEPTION_WARNED_NS
    return EXPIRING if is_near else LASTING


def written(expires_at_ns: int) -> str:
    """Return a time as annotations have it."""
    return GoTime(expires_at_ns // 10**9, 0).rfc3339()


def expiry_problems(
    annotations: Mapping[str, str], expires_at: str = ""
) -> Iterator[Problem]:
    """Yield why an exception has no effect at any time."""
    for path, time in _times(annotations, expires_at).items():
        try:
            _time_ns(time)
        except InputError:
            yield _problem(path, time, _TIME_EXPECTED)
    for name, value in annotations.items():
        if name.startswith(PREFIX) and name not in (*_NAMES, _OF_SOURCES):
            unknown = f"no such annotation; there are {', '.join(_NAMES)}"
            yield _problem(_path(name), value, unknown)
    reason = annotations.get(REASON)
    if reason is not None and not _is_reason(reason):
        expected = f"expected 1 to {EXCEPTION_REASON_CHARACTERS_MAX} characters, all"
        yield _problem(_path(REASON), reason, f"{expected} printable")


def _times(annotations: Mapping[str, str], expires_at: str) -> dict[str, str]:
    times = {EXPIRES_AT: expires_at} if expires_at else {}
    if EXPIRES in annotations:
        times[_path(EXPIRES)] = annotations[EXPIRES]
    return times


def _time_ns(time: str) -> int:
    """Raises: InputError."""
    expires = parse_time(RFC3339, time)
    expires_ns = expires.seconds * 10**9 + expires.nanos
    return max(NEVER_IN_EFFECT + 1, min(expires_ns, INT64_MAX))


def _is_reason(reason: str) -> bool:
    return (
        len(reason) <= EXCEPTION_REASON_CHARACTERS_MAX
        and bool(reason.strip())
        and reason.isprintable()
    )


def _path(name: str) -> str:
    return f"metadata.annotations[{name}]"


def _problem(path: str, value: str, reason: str) -> Problem:
    upstream = f"{path}: Invalid value: {quote(value[:64])}: {reason}"
    return Problem("policy.expiry", path, "", reason, upstream)
