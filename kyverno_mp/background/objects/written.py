"""Remember what was written last, and bring contested objects back less and less often.

Room: background. Takes: generated objects after each write. Gives: Written: is an
object as it was written; how long to leave a contested one alone. Next:
background/objects/downstream.py. May touch: the clock of its caller.
Source: docs/background.md (contested objects); client-go's per-item exponential failure
rate limiter.

An object is contested when the same content is written into it again and again: someone
else changes or deletes it each time. New content is always written at once.

The watch may bring a write before the API server's answer is here. So what is to be
decided about an object waits until no write to it is under way.
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
"""How often an object is brought back without a pause: an edit by hand is undone at
once, and again."""
PAUSES: Final = Backoff(least_s=1.0, most_s=300.0)
_QUIET_S: Final = 600.0
"""After twice the longest pause without a revert, the contest is over."""


class _Entry(msgspec.Struct):
    """One object."""

    uid: str
    version: str
    content: bytes
    """Stands for what was written: the API server adds defaults, so that the two cannot
    be compared."""
    reverts: int = 0
    at_s: float = 0.0


class _UnderWay(msgspec.Struct):
    """The writes to one object that have not ended."""

    threads: int = 0
    waiting: list[Callable[[], None]] = []


class Written:
    """The last writes; bounded, and threads may share it."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._deleted: OrderedDict[str, None] = OrderedDict()
        """The uids of objects that were deleted here, and are not wanted again."""
        self._under_way: dict[str, _UnderWay] = {}

    @contextmanager
    def writing(self, resource: Resource, raw: Json) -> Iterator[None]:
        """Hold back what is to be decided about an object until the block has ended."""
        place = _named(resource.group, resource.kind, key_of(raw))
        with self._lock:
            self._under_way.setdefault(place, _UnderWay()).threads += 1
        try:
            yield
        finally:
            with self._lock:
                one = self._under_way[place]
                one.threads -= 1
                if not one.threads:
                    del self._under_way[place]
            for decide in () if one.threads else one.waiting:
                decide()

    def when_written(
        self, resource: Resource, key: Key, decide: Callable[[], None]
    ) -> None:
        """Call ``decide`` when no write to an object is under way: mostly now.

        Too many for one object are called at once: then a write of ours may be taken
        for a change of others, and the object is only compared once more.
        """
        with self._lock:
            one = self._under_way.get(_named(resource.group, resource.kind, key))
            if one is not None and len(one.waiting) < BACKGROUND_DECISIONS_MAX:
                one.waiting.append(decide)
                return
        decide()

    def is_as_written(self, live: Json, raw: Json) -> bool:
        """Return whether an object is unchanged since this content was written."""
        uid = str(live["metadata"].get("uid") or "")
        with self._lock:
            known = self._entries.get(_place(raw))
            return known is not None and (known.uid, known.version, known.content) == (
                uid,
                version_of(live),
                digest(raw),
            )

    def is_ours(self, live: Json, raw: Json) -> bool:
        """Return whether the object itself, whatever it is now, was written here."""
        uid = str(live["metadata"].get("uid") or "")
        with self._lock:
            known = self._entries.get(_place(raw))
            return known is not None and known.uid == uid

    def version(self, resource: Resource, key: Key, uid: str) -> str:
        """Return the version of an object that was written last, "" for none."""
        with self._lock:
            known = self._entries.get(_named(resource.group, resource.kind, key))
            return known.version if known is not None and known.uid == uid else ""

    def is_deleted(self, uid: str) -> bool:
        """Return whether an object was deleted here, or is about to be."""
        with self._lock:
            return uid in self._deleted

    def note(self, made: Json, raw: Json, before: str = "") -> int:
        """Remember a write; return how often in a row the same content was written.

        ``before``: the version that the object had; "" = it did not exist.
        """
        uid = str((made.get("metadata") or {}).get("uid") or "")
        place, entry = _place(raw), _Entry(uid, version_of(made), digest(raw))
        entry.at_s = self._clock_s()
        with self._lock:
            known = self._entries.get(place)
            if known is not None and known.content == entry.content:
                entry.reverts, at_s = known.reverts, known.at_s
                if entry.at_s - at_s >= _QUIET_S:
                    entry.reverts = 0
                if entry.version == before:
                    # K8S: a write that changes nothing keeps the version.
                    entry.at_s = at_s
                else:
                    entry.reverts += 1
            self._deleted.pop(uid, None)
            self._entries[place] = entry
            self._entries.move_to_end(place)
            while len(self._entries) > BACKGROUND_WRITTEN_MAX:
                self._entries.popitem(last=False)
        return entry.reverts

    def deleting(self, resource: Resource, key: Key, uid: str) -> None:
        """Forget an object that is about to be deleted: that it goes is no change.

        Nor is it one that it is created again later.
        """
        with self._lock:
            self._entries.pop(_named(resource.group, resource.kind, key), None)
            self._deleted[uid] = None
            while len(self._deleted) > BACKGROUND_WRITTEN_MAX:
                self._deleted.popitem(last=False)

    def not_deleted(self, uid: str) -> None:
        """Note that an object stays, or is wanted again while it is going."""
        with self._lock:
            self._deleted.pop(uid, None)

    def pause_s(self, raw: Json) -> float:
        """Return for how long this content must not be written again; 0: it may."""
        with self._lock:
            known = self._entries.get(_place(raw))
            if known is None or known.reverts < REVERTS_AT_ONCE:
                return 0.0
            if known.content != digest(raw):
                return 0.0
            pause_s = PAUSES.pause_s(known.reverts - REVERTS_AT_ONCE + 1)
            return max(0.0, known.at_s + pause_s - self._clock_s())


def is_newer(version: str, than: str) -> bool:
    """Return whether a version of an object came after another one.

    K8S: versions of one resource are numbers that grow.
    """
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than


def _place(raw: Json) -> str:
    group = str(raw.get("apiVersion") or "").rpartition("/")[0]
    return _named(group, str(raw.get("kind") or ""), key_of(raw))


def _named(group: str, kind: str, key: Key) -> str:
    return "/".join((group, kind, *key))
