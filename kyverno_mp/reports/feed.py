"""Queue the objects that wait for an evaluator, and return them in batches.

Room: reports. Takes: objects from watches and lists, in any thread. Gives: Feed.
Next: reports/scan/dispatch.py.
Source: docs/pools.md 4.

The feed is bounded in objects and bytes. A producer waits while it is full, so that a
large list or a busy watch is read only as fast as its objects are evaluated. An object
that is queued again is replaced by its newer version, but keeps the time since which
its report is outdated.

A changed object may be delayed (``Pace``): for the results of its review, so that one
write has them and the results of the scan; and after an earlier change, so that an
object that changes all the time does not cause a write for each change. A full feed
delays nothing.
"""

import threading
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol, TypeAlias

import msgspec

from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import (
    REPORTS_BATCH_BYTES_MAX,
    REPORTS_BATCH_OBJECTS,
    REPORTS_WAITING_BYTES_MAX,
    REPORTS_WAITING_MAX,
)
from kyverno_mp.queues.turns import Shares, Turns
from kyverno_mp.reports.flights import Flights, Reviewed
from kyverno_mp.results.entries import Row, Subject

Keys = frozenset[bytes]
"""Keys of rules, see reports/fingerprints.py."""


def joined_keys(keys: Keys | None, more: Keys | None) -> Keys | None:
    """Return the rules to evaluate for both requests; None = all rules."""
    return None if keys is None or more is None else keys | more


class Source(Protocol):
    """The origin of an object, e.g. reports.watches.KindWatch."""

    @property
    def resource(self) -> Resource:
        """The resource of the objects."""

    def is_current(self, key: Key, uid: str, digest: bytes) -> bool:
        """Return whether the object is unchanged."""


class Pace(msgspec.Struct, frozen=True):
    """How long changed objects wait.

    ``review_s``: for results of reviews, if objects of this source had such results in
    the last ``expected_s``. ``interval_s``: after the object was last evaluated.
    """

    review_s: float = 0.0
    interval_s: float = 0.0
    expected_s: float = 60.0


class Item(msgspec.Struct, frozen=True):
    """One object. ``digest``: of the parts that rules read.

    ``since_s``: the monotonic time since which its report may be outdated.
    ``is_change``: the object itself changed. ``only``: the rules to evaluate, None =
    all; rows of other rules do not change. ``reviewed``: results of its reviews.
    """

    source: Source
    key: Key
    uid: str
    digest: bytes
    raw: bytes
    since_s: float
    is_change: bool
    only: Keys | None = None
    reviewed: Reviewed | None = None

    @property
    def subject(self) -> Subject:
        """The object as a report names it."""
        resource = self.source.resource
        return Subject(
            api_version=resource.api_version,
            kind=resource.kind,
            namespace=self.key[0],
            name=self.key[1],
            uid=self.uid,
        )

    @property
    def is_current(self) -> bool:
        """Whether an evaluator's results for the object are still valid."""
        return self.source.is_current(self.key, self.uid, self.digest)


_Id: TypeAlias = tuple[int, Key]
"""The id of a source, and the key of its object."""
_Group: TypeAlias = tuple[int, Shares]
"""The id of the source, because a batch has objects of one kind only, and shares."""


class Feed:
    """Objects by source, in order of arrival; any thread may call it."""

    def __init__(
        self,
        sharers: int = 1,
        batch_objects: int = 0,
        shares_of: Callable[[Item], Shares] = lambda _item: (),
        pace: Pace = Pace(),  # noqa: B008 - immutable
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``sharers``: the number of threads that take batches.

        ``batch_objects``: the maximum number of objects in a batch, 0 = default.
        ``shares_of``: the namespace and the servers that an object's evaluation waits
        for; objects of one share are taken by at most half of the threads at a time.
        """
        self._sharers = sharers
        self._batch_objects = batch_objects
        self._shares_of = shares_of
        self._turns = Turns(max(1, sharers // 2))
        self._pace = pace
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._waiting: dict[_Group, dict[Key, Item]] = {}
        self._groups: dict[_Id, _Group] = {}
        """The group in which an object waits, also after its delay."""
        self._delayed: dict[_Id, Item] = {}
        self._due_s: dict[_Id, float] = {}
        self._due: list[tuple[float, _Id]] = []
        """A heap of the times in ``_due_s``. An entry with another time is outdated:
        that delay has ended early."""
        self._taken_s: dict[_Id, float] = {}
        """When the objects were last taken, for ``Pace.interval_s``."""
        self._reviewed_s: dict[int, float] = {}
        """When results of reviews last arrived, by the id of the source."""
        self._count = 0
        self._bytes = 0
        self._taken = 0
        self._flights: Flights[Item] = Flights()
        self._closed = False

    def put(self, item: Item) -> bool:
        """Add an object; wait while the feed is full. Return False if it is closed."""
        group = id(item.source), self._shares_of(item)
        with self._changed:
            while not self._closed and self._is_full():
                self._changed.wait(1.0)
            if self._closed:
                return False
            self._put(item, group)
            self._changed.notify_all()
            return True

    def _put(self, item: Item, group: _Group) -> None:
        item_id = _id_of(item)
        is_delayed = item_id in self._delayed
        before = self._replaced(item_id, group)
        if before is not None:
            item = _joined(before, item)
            if item.reviewed is None:
                settle(before, is_written=False)
        self._groups[item_id] = group
        self._count += 1
        self._bytes += len(item.raw)
        if is_delayed:
            self._delayed[item_id] = item
        elif before is not None:
            self._waiting.setdefault(group, {})[item.key] = item
        else:
            self._queue(item, self._ready_s(item))

    def _queue(self, item: Item, due_s: float) -> None:
        """Let an object wait, until ``due_s`` with a delay."""
        item_id = _id_of(item)
        if due_s > self._clock_s():
            self._delayed[item_id] = item
            self._due_s[item_id] = due_s
            heappush(self._due, (due_s, item_id))
        else:
            self._waiting.setdefault(self._groups[item_id], {})[item.key] = item

    def expect_reviews(self, source: Source) -> None:
        """Delay changed objects of a source, because their reviews have results."""
        with self._changed:
            self._reviewed_s[id(source)] = self._clock_s()

    def attach(
        self, source: Source, key: Key, uid: str, rows: list[Row]
    ) -> Reviewed | None:
        """Add results of reviews to a waiting object; None if it is not waiting.

        The object does not wait for further results, only until its interval ends.
        """
        item_id = id(source), key
        with self._changed:
            if item_id not in self._groups:
                return None
            delayed = self._delayed.get(item_id)
            item = delayed or self._waiting[self._groups[item_id]][key]
            if item.uid != uid or item.reviewed is not None:
                return None
            reviewed = Reviewed(rows)
            item = msgspec.structs.replace(item, reviewed=reviewed)
            if delayed is None:
                self._waiting[self._groups[item_id]][key] = item
            else:
                del self._delayed[item_id], self._due_s[item_id]
                self._queue(item, self._next_s(item))
            self._changed.notify_all()
            return reviewed

    def take(self, timeout_s: float | None = None) -> list[Item]:
        """Return a batch; call ``done`` afterwards. [] = closed, or after a timeout."""
        with self._changed:
            while not self._closed:
                self._end_delays()
                items = self._take()
                if items:
                    self._taken += len(items)
                    self._changed.notify_all()
                    return items
                if not self._wait(timeout_s):
                    break
            return []

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a change or the end of a delay; return False after the timeout."""
        delay_s = self._due[0][0] - self._clock_s() if self._due else None
        if delay_s is None or (timeout_s is not None and timeout_s <= delay_s):
            return self._changed.wait(timeout_s)
        self._changed.wait(max(0.0, delay_s))
        return True

    def _end_delays(self) -> None:
        now_s = self._clock_s()
        while self._due and (self._due[0][0] <= now_s or self._is_full()):
            due_s, item_id = heappop(self._due)
            if self._due_s.get(item_id) == due_s:
                del self._due_s[item_id]
                self._queue(self._delayed.pop(item_id), due_s=now_s)

    def _ready_s(self, item: Item) -> float:
        """Return when an object may be taken."""
        now_s, pace = self._clock_s(), self._pace
        if not item.is_change:
            return now_s
        next_s = self._next_s(item)
        reviewed_s = self._reviewed_s.get(id(item.source), float("-inf"))
        is_expected = now_s - reviewed_s < pace.expected_s
        return max(next_s, now_s + pace.review_s) if is_expected else next_s

    def _next_s(self, item: Item) -> float:
        """Return when the interval after the last evaluation ends."""
        taken_s = self._taken_s.get(_id_of(item), float("-inf"))
        return taken_s + self._pace.interval_s

    def done(self, items: Sequence[Item]) -> None:
        """Report that the objects of a batch were processed."""
        shares = self._shares_of(items[0]) if items else ()
        with self._changed:
            self._taken -= len(items)
            self._flights.end((_id_of(item), item) for item in items)
            self._turns.end(shares, len(self._waiting))
            self._changed.notify_all()

    def is_overtaken(self, item: Item) -> bool:
        """Return whether another thread took the object later than ``item``."""
        with self._changed:
            return self._flights.is_overtaken(_id_of(item), item)

    @property
    def pending(self) -> int:
        """Number of objects that wait or are being processed."""
        with self._changed:
            return self._count + self._taken

    @property
    def undelayed(self) -> int:
        """Number of objects that wait without a delay or are being processed."""
        with self._changed:
            return self._count - len(self._delayed) + self._taken

    def close(self) -> None:
        """Drop all objects and release all waiting threads."""
        with self._changed:
            self._closed = True
            waiting = [
                item for same in self._waiting.values() for item in same.values()
            ]
            dropped = [*waiting, *self._delayed.values()]
            self._waiting.clear()
            self._groups.clear()
            self._delayed.clear()
            self._due_s.clear()
            self._due.clear()
            self._count = self._bytes = 0
            self._changed.notify_all()
        for item in dropped:
            settle(item, is_written=False)

    def _replaced(self, item_id: _Id, group: _Group) -> Item | None:
        """Return the older version of an object, which keeps its place in ``group``."""
        group_before = self._groups.get(item_id)
        if group_before is None:
            return None
        before = self._delayed.get(item_id)
        if before is None:
            before = self._waiting[group_before][item_id[1]]
            if group_before != group:
                del self._waiting[group_before][item_id[1]]
                if not self._waiting[group_before]:
                    del self._waiting[group_before]
        self._count -= 1
        self._bytes -= len(before.raw)
        return before

    def _is_full(self) -> bool:
        return (
            self._count >= REPORTS_WAITING_MAX
            or self._bytes >= REPORTS_WAITING_BYTES_MAX
        )

    def _take(self) -> list[Item]:
        """Take objects of the longest-waiting group, which then moves to the end."""
        shares = self._turns.choose(group[1] for group in self._waiting)
        if shares is None:
            return []
        group = next(group for group in self._waiting if group[1] == shares)
        same = self._waiting.pop(group)
        # The reports of a batch are written one after the other. If one thread took the
        # last few objects, they would wait for each other while the other threads are
        # idle.
        largest = self._batch_objects or REPORTS_BATCH_OBJECTS
        most = min(largest, -((len(self._delayed) - self._count) // self._sharers))
        items: list[Item] = []
        size = 0
        while same and len(items) < most:
            key = next(iter(same))
            if items and size + len(same[key].raw) > REPORTS_BATCH_BYTES_MAX:
                break
            if items and same[key].only != items[0].only:
                break
            item = same.pop(key)
            del self._groups[group[0], key]
            size += len(item.raw)
            items.append(item)
        if same:
            self._waiting[group] = same
        self._turns.begin(shares)
        self._count -= len(items)
        self._bytes -= size
        self._note(items)
        return items

    def _note(self, items: list[Item]) -> None:
        """Remember when objects were taken, as long as it matters."""
        interval_s, now_s = self._pace.interval_s, self._clock_s()
        for item in items:
            item_id = _id_of(item)
            self._taken_s.pop(item_id, None)
            self._taken_s[item_id] = now_s
            self._flights.begin(item_id, item)
        while self._taken_s:
            item_id, taken_s = next(iter(self._taken_s.items()))
            if now_s - taken_s < interval_s:
                break
            del self._taken_s[item_id]


def _id_of(item: Item) -> _Id:
    return id(item.source), item.key


def settle(item: Item, *, is_written: bool) -> None:
    """Tell whether the results of an object's reviews were written."""
    if item.reviewed is not None:
        item.reviewed.settle(is_written=is_written)


def _joined(before: Item, item: Item) -> Item:
    """Return the item for an object that is queued again while it waits."""
    first = min(item, before, key=lambda candidate: candidate.since_s)
    return msgspec.structs.replace(
        item,
        since_s=first.since_s,
        is_change=first.is_change,
        only=joined_keys(before.only, item.only),
        reviewed=before.reviewed if before.uid == item.uid else None,
    )
