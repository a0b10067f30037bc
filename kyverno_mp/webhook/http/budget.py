"""Bound the total bytes that the connections of one worker hold.

Room: webhook. Takes: the bytes of each connection. Gives: calls of ``evict`` on the
oldest unfinished holder. Next: connections, protocol.
"""

from typing import Protocol


class Holder(Protocol):
    """A connection, or a review in a thread, that holds bytes."""

    def evict(self) -> bool:
        """Free the memory; return False if a complete request is being evaluated."""


class RunningReview:
    """A review in a thread."""

    def evict(self) -> bool:
        """Return False, because the memory of a running thread cannot be freed."""
        return False


class Budget:
    """Bytes by holder, the oldest first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Bytes of all holders."""
        self.freed = 0
        """Bytes freed so far."""

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes fit."""
        return self.total + size <= self._bytes_max

    def hold(self, holder: Holder, size: int) -> None:
        """Set the bytes of a holder; over budget, the oldest holders are evicted.

        The holder itself can be evicted, if the reviews of all others are running.
        """
        self.total += size - self._held.get(holder, 0)
        self._held[holder] = size
        if self.total <= self._bytes_max:
            return
        for oldest in list(self._held):
            if oldest.evict():
                self.release(oldest)
                if self.total <= self._bytes_max:
                    return

    def release(self, holder: Holder) -> None:
        """Remove a holder."""
        size = self._held.pop(holder, 0)
        self.total -= size
        self.freed += size
