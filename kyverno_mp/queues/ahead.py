"""Read a journal ahead, and finish its records in any order.

Room: queues. Takes: one journal of a JournalReader. Gives: Ahead, Held. Next:
leader/triggers/writer.py. May touch: the memory of the journal.
Source: docs/pools.md 3.

A journal removes its records in order. A finished record behind a pending one stays
until the pending one is finished. If the reader is killed, the next reader gets both
again, so processing must be idempotent.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol


class _Journal(Protocol):
    """The reader's side of one journal."""

    @property
    def taken(self) -> int:
        """Number of bytes taken so far."""

    @property
    def waiting(self) -> int:
        """Number of records that have not been taken yet."""

    def first(self) -> tuple[bytes, int] | None:
        """Return the oldest record and its end position, or None if none waits."""

    def at(self, taken: int) -> tuple[bytes, int] | None:
        """Return the record at a position, or None if it is not readable."""

    def take(self, end: int, *, gave_up: bool = False) -> None:
        """Remove the record that ``first`` returned."""


class Held:
    """A record that was read and is still in its journal."""

    __slots__ = ("__weakref__", "at_ns", "content", "end", "gave_up", "is_finished")

    def __init__(self, content: bytes, end: int) -> None:
        self.content = content
        self.end = end
        self.at_ns = 0
        """When it was recorded; 0 until it was decoded."""
        self.is_finished = self.gave_up = False

    def finish(self, *, gave_up: bool = False) -> None:
        """Mark the record as processed, or as unprocessed and dropped."""
        self.is_finished, self.gave_up = True, gave_up
        self.content = b""


class Ahead:
    """The records of one journal that were read ahead; for one thread."""

    def __init__(self, journal: _Journal) -> None:
        self._journal = journal
        self._taken = journal.taken
        self._held: deque[Held] = deque()

    def due(self, most: int, is_due: Callable[[Held], bool]) -> list[Held]:
        """Return at most ``most`` records: pending ones that are due, then new ones."""
        if self._taken != self._journal.taken:
            # The journal discarded its unreadable records.
            self._held.clear()
            self._taken = self._journal.taken
        found = [one for one in self.pending() if is_due(one)][:most]
        while len(found) < most:
            held = self._held
            read = self._journal.at(held[-1].end) if held else self._journal.first()
            if read is None:
                break
            # ``first`` may discard unreadable records.
            self._taken = self._journal.taken
            held.append(Held(*read))
            found.append(held[-1])
        return found

    def pending(self) -> Iterator[Held]:
        """Yield the records that were read and are not finished."""
        return (one for one in self._held if not one.is_finished)

    @property
    def waiting(self) -> int:
        """Return the number of unfinished records, including unread ones."""
        finished = sum(one.is_finished for one in self._held)
        return max(0, self._journal.waiting - finished)

    def remove(self) -> None:
        """Remove the finished records at the beginning of the journal."""
        while self._held and self._held[0].is_finished:
            one = self._held.popleft()
            self._journal.take(one.end, gave_up=one.gave_up)
            self._taken = one.end
