"""Track the objects that threads are processing, and results that travel with them.

Room: reports. Takes: items of the feed. Gives: Flights, Reviewed. Next:
reports/feed.py, reports/scan/dispatch.py.
Source: docs/pools.md 4.

Two threads can process the same object: the data that its rules read changes while it
is being evaluated. The thread that took it first may have older results and be slower.
"""

from collections.abc import Hashable, Iterable
from concurrent.futures import Future
from typing import Generic, TypeVar

from kyverno_mp.results.entries import Row

T = TypeVar("T")


class Reviewed:
    """Results of reviews that are to be written with the next scan of an object."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.is_written: Future[bool] = Future()
        """False: they have to be written separately."""

    def settle(self, *, is_written: bool) -> None:
        """Set the outcome, unless it is known."""
        if not self.is_written.done():
            self.is_written.set_result(is_written)


class Flights(Generic[T]):
    """The items that are being processed; not thread-safe."""

    def __init__(self) -> None:
        self._of: dict[Hashable, tuple[int, T]] = {}
        """For each object, the number of items and the newest one."""

    def begin(self, item_id: Hashable, item: T) -> None:
        """Add an item of an object, which is the newest one from now on."""
        count, _ = self._of.get(item_id, (0, item))
        self._of[item_id] = count + 1, item

    def end(self, items: Iterable[tuple[Hashable, T]]) -> None:
        """Remove items."""
        for item_id, _ in items:
            count, newest = self._of.pop(item_id)
            if count > 1:
                self._of[item_id] = count - 1, newest

    def is_overtaken(self, item_id: Hashable, item: T) -> bool:
        """Return whether a newer item of the object was added than ``item``."""
        items = self._of.get(item_id)
        return items is not None and items[1] is not item
