"""Compute the delay before a dead process restarts, and detect crash loops.

Room: process. Takes: times of deaths. Gives: Backoff. Next: supervisor.
May touch: nothing; the clock is passed in.
"""

from collections import deque


class Backoff:
    """The deaths of one process within a window. All times are in seconds."""

    def __init__(
        self, *, least_s: float, most_s: float, window_s: float, loop_deaths: int
    ) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self._window_s = window_s
        self._loop_deaths = loop_deaths
        self._deaths: deque[float] = deque(maxlen=max(loop_deaths, 32))

    def died(self, now: float) -> float:
        """Record a death and return the delay, doubled for each death in the window."""
        self._deaths.append(now)
        recent = self._recent(now)
        return float(min(self._most_s, self._least_s * 2 ** (recent - 1)))

    def looping(self, now: float) -> bool:
        """Return whether the deaths in the last window are a crash loop."""
        return self._recent(now) >= self._loop_deaths

    def _recent(self, now: float) -> int:
        return sum(1 for death in self._deaths if now - death <= self._window_s)
