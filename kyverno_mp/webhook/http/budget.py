"""Bound the bytes that the connections of one worker hold together.

Room: webhook. Takes: what each connection holds. Gives: word to the oldest unfinished
one that it has to give way. Next: connections, protocol. May touch: nothing outside its
arguments.
"""

from typing import Protocol


class Holder(Protocol):
    """A connection, or a review that a thread has, that holds bytes."""

    def give_way(self) -> bool:
        """Give back what is held; False = a whole request is judged, it cannot."""


class Judged:
    """A review that a thread has."""

    def give_way(self) -> bool:
        """Say that it cannot: nobody can take from a thread what it works on."""
        return False


class Budget:
    """Bytes by holder, the one first that began to hold first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Bytes that all hold."""
        self.freed = 0
        """Bytes that were given back so far."""

    def has_room(self, size: int) -> bool:
        """Tell whether so many bytes more may be held."""
        return self.total + size <= self._bytes_max

    def hold(self, holder: Holder, size: int) -> None:
        """Say how many bytes a holder has now; beyond the budget the oldest give way.

        The holder itself may be told to: when the others are all being judged.
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
        """Say that a holder has nothing any more."""
        size = self._held.pop(holder, 0)
        self.total -= size
        self.freed += size
