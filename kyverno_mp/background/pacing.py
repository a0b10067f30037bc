"""Decide when a failing task or request is tried again.

Room: background. Takes: failures, outages and changes of one task, with their times.
Gives: Pace, Crowd. Next: background/requests.py.
Source: docs/background.md (requests); client-go's per-item exponential failure rate
limiter.

A failing task is also tried when it is submitted or marked again, e.g. because its
trigger changed: at once for the first time, then after pauses that grow until it
succeeds. Otherwise a writer that reacts to each attempt would cause attempts without
pauses.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kyverno_mp.background.policies import tenant_of
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import (
    BACKGROUND_ATTEMPTS_MAX,
    BACKGROUND_CROWDED_ATTEMPTS,
    BACKGROUND_CROWDED_SHARE,
)
from kyverno_mp.queues.work_queue import Backoff

_PAUSES: Final = Backoff(least_s=1.0, most_s=300.0)
_OUTAGE_PAUSES: Final = Backoff(least_s=0.5, most_s=30.0)


@dataclass(slots=True)
class Pace:
    """The attempts of one task since it last succeeded. Times are monotonic."""

    failures: int = 0
    """Failures of the current version."""
    all_failures: int = 0
    """Failures of this version and of earlier ones."""
    outages: int = 0
    due_s: float = 0.0
    tried_s: float = 0.0
    """When the last attempt failed."""
    hurries: int = 0
    """Failed attempts that a change caused."""
    is_hurried: bool = False
    """Whether a change caused the next attempt."""

    @classmethod
    def of(cls, failures: int) -> "Pace":
        """Return the pace of a task that failed this often before a restart."""
        return cls(failures, failures)

    def wait(self, now_s: float, pause_s: float) -> float:
        """Make the next attempt due after a pause; return the pause."""
        self.due_s = now_s + pause_s
        return pause_s

    def fail(self, now_s: float, *, is_crowded: bool = False) -> float:
        """Count a failure; return the pause."""
        self.failures += 1
        self.all_failures += 1
        self.outages = 0
        self.hurries += self.is_hurried
        self.is_hurried = False
        self.tried_s = now_s
        most = self.failures if is_crowded else max(self.failures, self.hurries)
        return self.wait(now_s, _PAUSES.pause_s(most))

    def fail_for_outage(self, now_s: float) -> float:
        """Count an outage, which is no failure of the task; return the pause."""
        self.outages += 1
        self.tried_s = now_s
        return self.wait(now_s, _OUTAGE_PAUSES.pause_s(self.outages))

    def is_over(self, *, is_crowded: bool = False) -> bool:
        """Return whether the last attempt failed.

        In a crowd, new versions get no more attempts. Otherwise, requests whose
        triggers change all the time would stay.
        """
        if is_crowded and self.all_failures >= BACKGROUND_CROWDED_ATTEMPTS:
            return True
        return self.failures >= BACKGROUND_ATTEMPTS_MAX

    def changed(self) -> "Pace":
        """Return the pace of a new version of the task."""
        is_failing = self.failures or self.outages or self.hurries
        if not (is_failing or self.is_hurried):
            return Pace()
        pause_s = _PAUSES.pause_s(self.hurries) if self.hurries else 0.0
        # The pauses of an outage are short, and a change does not end it.
        early_s = self.due_s if self.outages else self.tried_s + pause_s
        return Pace(
            all_failures=self.all_failures,
            outages=self.outages,
            due_s=min(self.due_s, early_s),
            tried_s=self.tried_s,
            hurries=self.hurries,
            is_hurried=True,
        )


class Crowd:
    """The stored requests that fail, by tenant; threads may share it.

    A tenant is the namespace of policies, or one cluster policy.
    """

    def __init__(self, threshold: Callable[[], int]) -> None:
        """``threshold`` returns updateRequestThreshold."""
        self._threshold = threshold
        self._lock = threading.Lock()
        self._of: dict[Key, str] = {}
        self._numbers: Counter[str] = Counter()

    def add(self, key: Key, policy: str) -> bool:
        """Add a failing request; return whether its tenant crowds out others.

        A tenant with less than the average of all tenants does not.
        """
        tenant = tenant_of(policy)
        with self._lock:
            if key not in self._of:
                self._of[key] = tenant
                self._numbers[tenant] += 1
            number, tenants = len(self._of), len(self._numbers)
            most = max(1, int(self._threshold() * BACKGROUND_CROWDED_SHARE))
            return number >= most and self._numbers[self._of[key]] * tenants >= number

    def drop(self, key: Key) -> None:
        """Forget a request that is gone or did not fail."""
        with self._lock:
            tenant = self._of.pop(key, None)
            if tenant is not None:
                self._numbers[tenant] -= 1
                if not self._numbers[tenant]:
                    del self._numbers[tenant]
