"""Note until when holds what a thread has verified.

Room: images. Takes: ends of certificates and signatures. Gives: Validity. Next:
images/verifier.py, images/policies/review.py. May touch: the clock that it is given.
Source: docs/behaviour/images 10.2 (nothing is kept past the end of its certificates).
"""

import threading
from collections.abc import Callable
from datetime import datetime
from math import inf


class _Held(threading.local):
    """The first end of what one thread has verified."""

    end: datetime | None = None


class Validity:
    """Ends by thread. SAFETY: another thread's certificates are not these."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._held = _Held()

    def hold(self, end: datetime) -> None:
        """Take note that something holds until then only."""
        held = self._held
        held.end = end if held.end is None else min(end, held.end)

    def take_s(self) -> float:
        """Return for how long holds what was verified since the last call."""
        end, self._held.end = self._held.end, None
        return inf if end is None else (end - self._now()).total_seconds()
