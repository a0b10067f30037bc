"""Implement the current time, cron expressions of times, and random strings.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
May touch: the clock and the source of randomness of the rule's Runtime.
Source: kyverno/sdk cel/libs/time, cel/libs/random; docs/behaviour/cel 12.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.library import Declaration, function
from kyverno_mp.expr.cel.operators import timestamp_result
from kyverno_mp.expr.cel.values import CelFailed, Duration, Meter, Timestamp, text_bytes
from kyverno_mp.expr.jmespath.random_text import generate
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.gotime import GoTime

_COST: Final = 60
_DRAWN_COST: Final = 400
_DEFAULT: Final = "[0-9a-z]{8}"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO_NS: Final = -62_135_596_800 * 10**9
"""Go's zero time, 1 January of the year 1: truncation counts from it."""


def runtime_of(meter: Meter) -> Runtime:
    """Return the rule's Runtime. Raises: CelFailed in constants, which have none."""
    budget = meter.budget
    if not isinstance(budget, Runtime):
        raise CelFailed("neither the time nor random values are available here")
    return budget


def _now(meter: Meter) -> Timestamp:
    since = runtime_of(meter).now() - _EPOCH
    return Timestamp(since // timedelta(microseconds=1) * 1000)


def _truncated(_meter: Meter, moment: Timestamp, step: Duration) -> Timestamp:
    """Round down, as Go does; a step of zero or less changes nothing."""
    if step.ns <= 0:
        return moment
    rest = (moment.ns - _ZERO_NS) % step.ns
    return timestamp_result(moment.ns - rest, moment.offset_s)


def _cron(_meter: Meter, moment: Timestamp) -> str:
    """Return the cron expression of the moment's minute, at its original offset."""
    at = GoTime(moment.ns // 10**9, 0, moment.offset_s)
    _, month, day, hour, minute, _ = at.civil()
    return f"{minute} {hour} {day} {month} {at.weekday()}"


def _random(meter: Meter, pattern: str = _DEFAULT) -> str:
    meter.charge_bytes(2 * text_bytes(len(pattern), pattern))
    try:
        return generate(pattern, runtime_of(meter))
    except ExpressionFailed as error:
        raise CelFailed(error.message) from error


def _declared() -> Iterator[Declaration]:
    yield function("time.now() -> timestamp", _now, cost=_COST)
    yield function(
        "time.truncate(timestamp, duration) -> timestamp", _truncated, cost=_COST
    )
    yield function("time.toCron(timestamp) -> string", _cron, cost=_COST)
    for name in ("random", "random.random"):
        yield function(f"{name}() -> string", _random, cost=_DRAWN_COST)
        yield function(f"{name}(string) -> string", _random, cost=_DRAWN_COST)


OVERLOADS: Final = tuple(_declared())
