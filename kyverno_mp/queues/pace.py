"""Compute how long to delay a change, so that changes are published in batches.

Room: queues. Takes: times of changes and of the work that they caused. Gives: Pace: how
long to wait. Next: leader/loop.py, controllers/webhook_config/controller.py. May touch:
nothing outside its arguments; time is passed in.

A single change does not wait. While changes keep arriving, each pause is twice the
previous one: a thousand policies applied at once are published a few dozen times, and
the last of them waits no longer than the longest pause.
"""

from dataclasses import dataclass
from typing import Final

_PAUSE_S_MIN: Final = 0.01
_PAUSE_S_MAX: Final = 0.32
_SOON_S: Final = 0.05
"""A change within this time after the last round of work belongs to a burst."""
_TOOK_S_MAX: Final = 2.0
"""In a burst, the pause is at least as long as the last round of work, up to this."""


@dataclass(slots=True)
class Pace:
    """When the next round of work may begin."""

    _pause_s: float = 0.0
    _ended_s: float = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Return how long a change that arrives now has to wait."""
        return max(0.0, self._ended_s + self._pause_s - now_s)

    def worked(self, began_s: float, ended_s: float) -> None:
        """Record a round of work; one soon after the last round belongs to a burst."""
        # Twice the pause, so that a change right after the pause still extends the
        # burst.
        soon = began_s - self._ended_s <= max(2 * self._pause_s, _SOON_S)
        if soon:
            doubled = min(_PAUSE_S_MAX, 2 * max(self._pause_s, _PAUSE_S_MIN / 2))
            self._pause_s = max(doubled, min(ended_s - began_s, _TOOK_S_MAX))
        else:
            self._pause_s = 0.0
        self._ended_s = ended_s
