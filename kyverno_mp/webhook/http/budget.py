"""Bound the total bytes that the connections of one worker hold.

Room: webhook. Takes: the bytes of each connection. Gives: calls ``give_way`` on the
oldest unfinished one. Next: connections, protocol. May touch: nothing outside its
arguments.
"""

from typing import Protocol


class Holder(Protocol):
    """A connection, or a review in a thread, that holds bytes."""

    def give_way(self) -> bool:
        """Free what is held; False if a complete request is evaluated."""


class Judged:
    """A review in a thread."""

    def give_way(self) -> bool:
        """Return False: the memory of a running thread cannot be freed."""
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
        """Tell whether ``size`` more bytes fit."""
        return self.total + size <= self._bytes_max

    def hold(self, holder: Holder, size: int) -> None:
        """Set the bytes of a holder; over budget, the oldest holders give way.

        The holder itself may have to give way, if the reviews of all others run.
        """
        self.total += size - self._held.get(holder, 0)
        self._held[holder] = size
        if self.total <= self._bytes_max:
            return
        for oldest in list(self._held):
            if oldest.give_way():
                self.release(oldest)
                if self.total <= self._bytes_max:
                    return

    def release(self, holder: Holder) -> None:
        """Remove a holder."""
        size = self._held.pop(holder, 0)
        self.total -= size
        self.freed += size
