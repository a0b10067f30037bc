"""Share a bounded queue fairly, so that one namespace displaces no other.

Room: queues. Takes: the namespace and the size of what is queued. Gives: Fair,
FairRing. Next: queues/journal.py, webhook/audit/queue.py.
Source: docs/architecture.md 1 (promise 4).

A part of a queue is its share of the entries or of the bytes, whichever is larger.
"""

from collections import Counter, deque
from typing import Final

_RESERVED: Final = 4
"""The last one of so many parts of a queue that cannot evict is shared fairly; a single
namespace gets half of it."""


class Fair:
    """What each namespace holds of one queue; not thread-safe."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entries: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def add(self, namespace: str, size: int) -> None:
        """Count an entry."""
        self._entries[namespace] += 1
        self._bytes[namespace] += size

    def remove(self, namespace: str, size: int) -> None:
        """Count an entry that has left the queue."""
        self._entries[namespace] -= 1
        self._bytes[namespace] -= size
        if not self._entries[namespace]:
            del self._entries[namespace], self._bytes[namespace]

    def heaviest(self, namespace: str, size: int) -> str | None:
        """Return whose entry makes room for another one, None if it must be dropped."""
        own = self._part(namespace, 1, size)
        # PERF: whoever has its fair part already is told so without a search.
        if own * self._others(namespace) > 1:
            return None
        found = max(self._entries, key=self._part, default=namespace)
        return found if self._part(found) > own else None

    def admits(self, namespace: str, size: int, left: int, left_bytes: int) -> bool:
        """Return whether a namespace takes no more than its part of what is left.

        So some is always left for the next namespace.
        """
        held = self._entries.get(namespace, 0)
        number = self._others(namespace)
        return not held or (
            held < left // number
            and self._bytes[namespace] + size <= left_bytes // number
        )

    def _others(self, namespace: str) -> int:
        """Return the number of namespaces, with this one."""
        return len(self._entries) + (namespace not in self._entries)

    def _part(self, namespace: str, more: int = 0, more_bytes: int = 0) -> float:
        entries = self._entries.get(namespace, 0) + more
        held_bytes = self._bytes.get(namespace, 0) + more_bytes
        return max(
            entries / max(1, self._entries_max), held_bytes / max(1, self._bytes_max)
        )


class FairRing:
    """The last part of a ring, which cannot evict; not thread-safe."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._fair = Fair(entries_max, bytes_max)
        self._held: deque[tuple[int, str, int]] = deque()
        """The end, the namespace and the size of the entries in ``_fair``."""

    def admits(
        self, namespace: str, size: int, entries: int, written: int, taken: int
    ) -> bool:
        """Return whether to add an entry that fits.

        ``entries``: those in the ring; ``written``, ``taken``: bytes so far. PERF:
        nothing is counted until the ring is crowded.
        """
        left = self._entries_max - entries
        left_bytes = self._bytes_max - (written - taken)
        if (
            left > self._entries_max // _RESERVED
            and left_bytes - size >= self._bytes_max // _RESERVED
        ):
            return True
        fair, held = self._fair, self._held
        while held and held[0][0] <= taken:
            fair.remove(*held.popleft()[1:])
        if not fair.admits(namespace, size, left, left_bytes):
            return False
        fair.add(namespace, size)
        held.append((written + size, namespace, size))
        return True
