"""A clock that only advances when a test moves it."""

from datetime import UTC, datetime, timedelta

from kyverno_mp.queues.clock import Clock

START = datetime(2026, 1, 1, tzinfo=UTC)


class TurnedClock:
    """A manual clock; ``clock`` is passed to the code under test."""

    def __init__(self, start: datetime = START) -> None:
        self.passed_s = 0.0
        self._start = start
        self.clock = Clock(self.monotonic_s, self.now)

    def monotonic_s(self) -> float:
        return 1000.0 + self.passed_s

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.passed_s)

    def turn(self, seconds: float) -> None:
        self.passed_s += seconds
