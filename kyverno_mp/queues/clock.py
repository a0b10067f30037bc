"""Define the clocks, which tests can replace.

Room: queues. Takes: nothing. Gives: Clock. Next: work_queue.py, controllers, leader.
May touch: the clocks of the machine.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """``monotonic_s`` measures durations; ``now`` is the wall-clock time."""

    monotonic_s: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _utc

    def monotonic_ns(self) -> int:
        """Return ``monotonic_s`` in nanoseconds."""
        return int(self.monotonic_s() * 1e9)
