"""Decide when a failing task or request is tried again.

Room: background. Takes: failures, outages and changes of one task, with their times.
Gives: Pace. Next: background/requests.py. May touch: nothing outside its arguments.
Source: docs/background.md (requests); client-go's per-item exponential failure rate
limiter.

A failing task is also tried when it is submitted or marked again, e.g. because its
trigger changed: at once for the first time, then after pauses that grow until it
succeeds. Otherwise a writer that reacts to each attempt would cause attempts without
pauses.
"""

from dataclasses import dataclass
from typing import Final

from kyverno_mp.limits import (
    BACKGROUND_ATTEMPTS_MAX,
    BACKGROUND_CROWDED,
    BACKGROUND_CROWDED_ATTEMPTS,
)
from kyverno_mp.queues.work_queue import Backoff

_PAUSES: Final = Backoff(least_s=1.0, most_s=300.0)
_OUTAGE_PAUSES: Final = Backoff(least_s=0.5, most_s=30.0)


@dataclass(slots=True)
class Pace:
    """The attempts of one task since it last succeeded. Times are monotonic."""

    failures: int = 0
    """Failures of the current version."""
    outages: int = 0
    due_s: float = 0.0
    tried_s: float = 0.0
    """When the last attempt failed."""
    hurries: int = 0
    """Failed attempts that a change caused."""
    is_hurried: bool = False
    """Whether a change caused the next attempt."""

    def wait(self, now_s: float, pause_s: float) -> float:
        """Make the next attempt due after a pause; return the pause."""
        self.due_s = now_s + pause_s
        return pause_s

    def fail(self, now_s: float) -> float:
        """Count a failure; return the pause."""
        self.failures += 1
        self._tried(now_s)
        return self.wait(now_s, _PAUSES.pause_s(max(self.failures, self.hurries)))

    def fail_for_outage(self, now_s: float) -> float:
        """Count an outage, which is no failure of the task; return the pause."""
        self.outages += 1
        self._tried(now_s)
        return self.wait(now_s, _OUTAGE_PAUSES.pause_s(self.outages))

    def is_over(self, stored: int = 0) -> bool:
        """Return whether the last attempt failed; ``stored``: number of requests."""
        is_crowded = stored >= BACKGROUND_CROWDED
        most = BACKGROUND_CROWDED_ATTEMPTS if is_crowded else BACKGROUND_ATTEMPTS_MAX
        return self.failures >= most

    def changed(self) -> "Pace":
        """Return the pace of a new version of the task."""
        is_failing = self.failures or self.outages or self.hurries
        if not (is_failing or self.is_hurried):
            return Pace()
        pause_s = _PAUSES.pause_s(self.hurries) if self.hurries else 0.0
        return Pace(
            outages=self.outages,
            due_s=self.tried_s + pause_s,
            tried_s=self.tried_s,
            hurries=self.hurries,
            is_hurried=True,
        )

    def _tried(self, now_s: float) -> None:
        self.hurries += self.is_hurried
        self.is_hurried = False
        self.tried_s = now_s
