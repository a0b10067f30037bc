"""Compute how long to delay a change, so that changes are published in batches.

Room: queues. Takes: times of changes and of the work that they caused. Gives: Pace: how
long to wait; Slice: how long a part of the work may take. Next: leader/loop.py,
controllers/webhook_config/controller.py. May touch: the clock.

A single change does not wait, nor do the first few of a quick series, such as a create
and a delete. While changes keep arriving, each pause is twice the previous one: a
thousand policies applied at once are published a few dozen times, and the last of them
waits no longer than the longest pause. A change that follows a pause without changes
begins a new series, even if it arrives earlier than the longest pause would allow.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_PAUSE_S_MIN: Final = 0.01
_PAUSE_S_MAX: Final = 0.32
_SOON_S: Final = 0.05
"""A change that arrives within this time after a round of work extends the series."""
_FREE_ROUNDS: Final = 4
"""Rounds of a series without a pause: a create and a delete, each with our own write
of the policy's status, which arrives as a change too."""
_FREE_S: Final = 0.05
"""A longer round is followed by a pause, even among the first of a series."""
_TOOK_S_MAX: Final = 2.0
"""In a burst, the pause is at least as long as the last round of work, up to this."""


@dataclass(slots=True)
class Pace:
    """When the next round of work may begin."""

    _pause_s: float = 0.0
    _began_s: float = 0.0
    _ended_s: float = float("-inf")
    _arrived_s: float | None = None
    """When the first change after the last round arrived; None = not yet."""
    _rounds: int = 0
    """Consecutive rounds of a series."""

    def wait_s(self, now_s: float) -> float:
        """Return how long a change that arrives now has to wait."""
        if self._arrived_s is None:
            self._arrived_s = now_s
        return max(0.0, self._ended_s + self._pause_s - now_s)

    def idle(self) -> None:
        """Record that there was nothing to do: the arrival was not a change."""
        self._arrived_s = None

    def worked(self, began_s: float, ended_s: float) -> None:
        """Record a round of work; one soon after the last round extends a series."""
        arrived_s = began_s if self._arrived_s is None else self._arrived_s
        # By the arrival, because the round itself begins only after the pause.
        soon_s = max(_SOON_S, self._ended_s - self._began_s)
        soon = arrived_s - self._ended_s <= soon_s
        took_s = ended_s - began_s
        self._rounds = self._rounds + 1 if soon else 0
        if soon and (self._rounds >= _FREE_ROUNDS or took_s > _FREE_S):
            doubled = min(_PAUSE_S_MAX, 2 * max(self._pause_s, _PAUSE_S_MIN / 2))
            self._pause_s = max(doubled, min(took_s, _TOOK_S_MAX))
        else:
            self._pause_s = 0.0
        self._began_s, self._ended_s, self._arrived_s = began_s, ended_s, None


_SLICE_S_MAX: Final = 5.0
"""Whoever waits for the end of a round waits no longer for its slice."""


class Slice:
    """The time for one part of each round of work, such as compiling before publishing.

    It is at least as long as the rest of the last round, so half of all time goes to
    this part however slow the machine is: the number of rounds does not grow with it.
    """

    def __init__(
        self, least_s: float, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.least_s = least_s
        self._monotonic_s = monotonic_s
        self._rest_s = 0.0
        self._began_s: float | None = None
        self._used_s = 0.0

    @contextmanager
    def round(self) -> Iterator[None]:
        """Do a round of work in the block."""
        round_began_s = self._monotonic_s()
        self._began_s, self._used_s = None, 0.0
        try:
            yield
        finally:
            self._rest_s = self._monotonic_s() - round_began_s - self._used_s

    def is_over(self) -> bool:
        """Return whether the part must end now; it begins at the first call."""
        now_s = self._monotonic_s()
        if self._began_s is None:
            self._began_s = now_s
        self._used_s = now_s - self._began_s
        return self._used_s > max(self.least_s, min(self._rest_s, _SLICE_S_MAX))
