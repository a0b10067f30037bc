"""Queue the objects that wait for an evaluator, and return them in batches.

Room: reports. Takes: objects from watches and lists, in any thread. Gives: Feed.
Next: reports/scan/dispatch.py. May touch: nothing outside its arguments.
Source: docs/pools.md 4.

The feed is bounded in objects and bytes. A producer waits while it is full, so that a
large list or a busy watch is read only as fast as its objects are evaluated. An object
that is queued again is replaced by its newer version, but keeps the time since which
its report is outdated.
"""

import threading
from collections.abc import Callable, Sequence
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
from kyverno_mp.reports.entries import Subject

Keys = frozenset[bytes]
"""Keys of rules, see reports/fingerprints.py."""


def joined_keys(one: Keys | None, other: Keys | None) -> Keys | None:
    """Return the rules to evaluate for both requests; None = all rules."""
    return None if one is None or other is None else one | other


class Source(Protocol):
    """The origin of an object, e.g. reports.watches.KindWatch."""

    @property
    def resource(self) -> Resource:
        """The resource of the objects."""

    def is_current(self, key: Key, uid: str, digest: bytes) -> bool:
        """Return whether the object is unchanged."""


class Item(msgspec.Struct, frozen=True):
    """One object. ``digest``: of the parts that rules read.

    ``since_s``: the monotonic time since which its report may be outdated.
    ``is_change``: the object itself changed. ``only``: the rules to evaluate, None =
    all; rows of other rules do not change.
    """

    source: Source
    key: Key
    uid: str
    digest: bytes
    raw: bytes
    since_s: float
    is_change: bool
    only: Keys | None = None

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


_Group: TypeAlias = tuple[int, Shares]
"""The id of the source, because a batch has objects of one kind only, and shares."""


class Feed:
    """Objects by source, in order of arrival; any thread may call it."""

    def __init__(
        self,
        sharers: int = 1,
        batch_objects: int = 0,
        shares_of: Callable[[Item], Shares] = lambda _item: (),
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
        self._changed = threading.Condition()
        self._waiting: dict[_Group, dict[Key, Item]] = {}
        self._groups: dict[tuple[int, Key], _Group] = {}
        """The group in which an object waits."""
        self._count = 0
        self._bytes = 0
        self._taken = 0
        self._closed = False

    def put(self, item: Item) -> bool:
        """Add an object; wait while the feed is full. Return False if it is closed."""
        group = id(item.source), self._shares_of(item)
        with self._changed:
            while not self._closed and self._is_full():
                self._changed.wait(1.0)
            if self._closed:
                return False
            before = self._replaced(item, group)
            if before is not None:
                item = _joined(before, item)
            self._groups[id(item.source), item.key] = group
            self._waiting.setdefault(group, {})[item.key] = item
            self._count += 1
            self._bytes += len(item.raw)
            self._changed.notify_all()
            return True

    def take(self, timeout_s: float | None = None) -> list[Item]:
        """Return a batch; call ``done`` afterwards. [] = closed, or after a timeout."""
        with self._changed:
            while not self._closed:
                taken = self._take()
                if taken:
                    self._taken += len(taken)
                    self._changed.notify_all()
                    return taken
                # Another thread may have taken the object that woke this one.
                if not self._changed.wait(timeout_s):
                    break
            return []

    def done(self, items: Sequence[Item]) -> None:
        """Report that the objects of a batch were processed."""
        shares = self._shares_of(items[0]) if items else ()
        with self._changed:
            self._taken -= len(items)
            self._turns.end(shares, len(self._waiting))
            self._changed.notify_all()

    @property
    def pending(self) -> int:
        """Number of objects that wait or are being processed."""
        with self._changed:
            return self._count + self._taken

    def close(self) -> None:
        """Drop all objects and release all waiting threads."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._groups.clear()
            self._count = self._bytes = 0
            self._changed.notify_all()

    def _replaced(self, item: Item, group: _Group) -> Item | None:
        """Return the older version of an object, which keeps its place in ``group``."""
        known = self._groups.get((id(item.source), item.key))
        if known is None:
            return None
        same = self._waiting[known]
        before = same[item.key]
        self._count -= 1
        self._bytes -= len(before.raw)
        if known != group:
            del same[item.key]
            if not same:
                del self._waiting[known]
        return before

    def _next(self) -> _Group | None:
        shares = self._turns.choose(group[1] for group in self._waiting)
        if shares is None:
            return None
        return next(group for group in self._waiting if group[1] == shares)

    def _is_full(self) -> bool:
        return (
            self._count >= REPORTS_WAITING_MAX
            or self._bytes >= REPORTS_WAITING_BYTES_MAX
        )

    def _take(self) -> list[Item]:
        """Take objects of the longest-waiting group, which then moves to the end."""
        group = self._next()
        if group is None:
            return []
        same = self._waiting.pop(group)
        # The reports of a batch are written one after the other. If one thread took the
        # last few objects, they would wait for each other while the other threads are
        # idle.
        largest = self._batch_objects or REPORTS_BATCH_OBJECTS
        most = min(largest, -(-self._count // self._sharers))
        taken: list[Item] = []
        size = 0
        while same and len(taken) < most:
            key = next(iter(same))
            if taken and size + len(same[key].raw) > REPORTS_BATCH_BYTES_MAX:
                break
            if taken and same[key].only != taken[0].only:
                break
            item = same.pop(key)
            del self._groups[group[0], key]
            size += len(item.raw)
            taken.append(item)
        if same:
            self._waiting[group] = same
        self._turns.begin(group[1])
        self._count -= len(taken)
        self._bytes -= size
        return taken


def _joined(before: Item, item: Item) -> Item:
    """Return the item for an object that is queued again while it waits."""
    first = min(item, before, key=lambda one: one.since_s)
    return msgspec.structs.replace(
        item,
        since_s=first.since_s,
        is_change=first.is_change,
        only=joined_keys(before.only, item.only),
    )
