"""Remember the last writes, and restore contested objects less and less often.

Room: background. Takes: generated objects after each write. Gives: Written: whether an
object is unchanged; the back-off of a contested one. Next:
background/objects/downstream.py. May touch: the caller's clock.
Source: docs/background.md (contested objects); client-go's per-item exponential failure
rate limiter.

An object is contested when the same content has to be written again and again because
another writer changes or deletes it each time. New content is always written at once.

The watch may deliver a write before the API server's response arrives. Decisions about
an object therefore wait until no write to it is in progress.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from kyverno_mp.background.objects.content import digest, version_of
from kyverno_mp.kube.apply import key_of
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import BACKGROUND_DECISIONS_MAX, BACKGROUND_WRITTEN_MAX
from kyverno_mp.queues.work_queue import Backoff
from kyverno_mp.values.jsonvalue import Json

REVERTS_AT_ONCE: Final = 5
"""Number of reverts without a pause, so that manual edits are undone at once, even
several times."""
PAUSES: Final = Backoff(least_s=1.0, most_s=300.0)
_QUIET_S: Final = 600.0
"""After twice the longest pause without a revert, the object is no longer contested."""


class _Entry(msgspec.Struct):
    """The last write of one object."""

    uid: str
    version: str
    content: bytes
    """Hash of the written content. The stored object differs from it, because the API
    server adds defaults."""
    reverts: int = 0
    at_s: float = 0.0


class _UnderWay(msgspec.Struct):
    """The writes to one object that are in progress."""

    threads: int = 0
    waiting: list[Callable[[], None]] = []


class Written:
    """The last writes; bounded, and threads may share it."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._deleted: OrderedDict[str, None] = OrderedDict()
        """The uids of objects that were deleted here and are no longer wanted."""
        self._under_way: dict[str, _UnderWay] = {}

    @contextmanager
    def writing(self, resource: Resource, raw: Json) -> Iterator[None]:
        """Defer decisions about an object until the block has ended."""
        identity = _named(resource.group, resource.kind, key_of(raw))
        with self._lock:
            self._under_way.setdefault(identity, _UnderWay()).threads += 1
        try:
            yield
        finally:
            with self._lock:
                under_way = self._under_way[identity]
                under_way.threads -= 1
                if not under_way.threads:
                    del self._under_way[identity]
            for decide in () if under_way.threads else under_way.waiting:
                decide()

    def when_written(
        self, resource: Resource, key: Key, decide: Callable[[], None]
    ) -> None:
        """Call ``decide`` once no write to an object is in progress, usually at once.

        If too many wait for one object, ``decide`` is called at once. Our own write may
        then be taken for another writer's change, which only causes one more
        comparison.
        """
        with self._lock:
            under_way = self._under_way.get(_named(resource.group, resource.kind, key))
            if (
                under_way is not None
                and len(under_way.waiting) < BACKGROUND_DECISIONS_MAX
            ):
                under_way.waiting.append(decide)
                return
        decide()

    def is_as_written(self, live: Json, raw: Json) -> bool:
        """Return whether an object is unchanged since this content was written."""
        uid = str(live["metadata"].get("uid") or "")
        with self._lock:
            entry = self._entries.get(_place(raw))
            return entry is not None and (entry.uid, entry.version, entry.content) == (
                uid,
                version_of(live),
                digest(raw),
            )

    def is_ours(self, live: Json, raw: Json) -> bool:
        """Return whether an object was written here, even if it has changed since."""
        uid = str(live["metadata"].get("uid") or "")
        with self._lock:
            entry = self._entries.get(_place(raw))
            return entry is not None and entry.uid == uid

    def version(self, resource: Resource, key: Key, uid: str) -> str:
        """Return the last written version of an object, "" if there is none."""
        with self._lock:
            entry = self._entries.get(_named(resource.group, resource.kind, key))
            return entry.version if entry is not None and entry.uid == uid else ""

    def is_deleted(self, uid: str) -> bool:
        """Return whether an object was deleted here or is about to be."""
        with self._lock:
            return uid in self._deleted

    def note(self, stored: Json, raw: Json, before: str = "") -> int:
        """Record a write; return how many times in a row this content was restored.

        ``before``: the version that the object had; "" = it did not exist.
        """
        uid = str((stored.get("metadata") or {}).get("uid") or "")
        identity, entry = _place(raw), _Entry(uid, version_of(stored), digest(raw))
        entry.at_s = self._clock_s()
        with self._lock:
            entry_before = self._entries.get(identity)
            if entry_before is not None and entry_before.content == entry.content:
                entry.reverts, at_s = entry_before.reverts, entry_before.at_s
                if entry.at_s - at_s >= _QUIET_S:
                    entry.reverts = 0
                if entry.version == before:
                    # K8S: a write without changes keeps the resource version.
                    entry.at_s = at_s
                else:
                    entry.reverts += 1
            self._deleted.pop(uid, None)
            self._entries[identity] = entry
            self._entries.move_to_end(identity)
            while len(self._entries) > BACKGROUND_WRITTEN_MAX:
                self._entries.popitem(last=False)
        return entry.reverts

    def deleting(self, resource: Resource, key: Key, uid: str) -> None:
        """Forget an object that is about to be deleted by this pool.

        Neither its deletion nor its later re-creation counts as another writer's
        change.
        """
        with self._lock:
            self._entries.pop(_named(resource.group, resource.kind, key), None)
            self._deleted[uid] = None
            while len(self._deleted) > BACKGROUND_WRITTEN_MAX:
                self._deleted.popitem(last=False)

    def not_deleted(self, uid: str) -> None:
        """Record that an object stays, or is wanted again while it is being deleted."""
        with self._lock:
            self._deleted.pop(uid, None)

    def pause_s(self, raw: Json) -> float:
        """Return how long this content must not be written again; 0 = not blocked."""
        with self._lock:
            entry = self._entries.get(_place(raw))
            if entry is None or entry.reverts < REVERTS_AT_ONCE:
                return 0.0
            if entry.content != digest(raw):
                return 0.0
            pause_s = PAUSES.pause_s(entry.reverts - REVERTS_AT_ONCE + 1)
            return max(0.0, entry.at_s + pause_s - self._clock_s())


def is_newer(version: str, than: str) -> bool:
    """Return whether one version of an object is newer than another.

    K8S: resource versions of one resource are increasing numbers.
    """
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than


def _place(raw: Json) -> str:
    group = str(raw.get("apiVersion") or "").rpartition("/")[0]
    return _named(group, str(raw.get("kind") or ""), key_of(raw))


def _named(group: str, kind: str, key: Key) -> str:
    return "/".join((group, kind, *key))
