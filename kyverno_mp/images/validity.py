"""Track how long a thread's verification results stay valid.

Room: images. Takes: ends of certificates and signatures. Gives: Validity. Next:
images/verifier.py, images/policies/review.py. May touch: the given clock.
Source: docs/behaviour/images 10.2 (a result expires with its certificates).
"""

import threading
from collections.abc import Callable
from datetime import datetime
from math import inf


class _Held(threading.local):
    """The earliest end of validity of one thread's results."""

    end: datetime | None = None


class Validity:
    """Ends of validity by thread. SAFETY: threads verify different certificates."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._held = _Held()

    def hold(self, end: datetime) -> None:
        """Record that a certificate or signature is valid only until ``end``."""
        ends = self._held
        ends.end = end if ends.end is None else min(end, ends.end)

    def take_s(self) -> float:
        """Return how long the results since the last call stay valid."""
        end, self._held.end = self._held.end, None
        return inf if end is None else (end - self._now()).total_seconds()
