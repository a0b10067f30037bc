"""Free memory in a worker without blocking its event loop.

Room: webhook. Takes: the rules of each replaced snapshot, how many rules are linked,
the count of ended connections, the bytes of reviews. Gives: memory; how long
collections took. Next: start.py. May touch: Python's garbage collector, malloc.

A collection visits every tracked object while it holds the interpreter lock: ten
thousand linked policies are two million objects, which take two seconds; a large review
takes as long to visit as to decode. So each linked rule is visited once: while rules
are linked, the new objects are collected and then frozen, which removes them from the
collector's lists, some ten thousand at a time. A frozen object is freed with its last
reference, but never if it is part of a cycle. So linked rules form no reference cycles,
garbage is collected before anything is frozen, and nothing is frozen while a policy is
reviewed, because the compiler leaves cycles. A replaced rule is freed with its last
reference.

Collections run only here, when few objects are left to visit. Reviews and connections
should create no garbage for them: an error that is stored beyond its ``except`` block
would keep its review alive (errors.without_frames). If this happens anyway, two rules
cover it: a collection after many bytes of reviews, and a collection if more objects
stay for longer than any review takes.

SAFETY: nothing here lists the live objects: a list would contain the tuples that other
threads are building, and CPython cannot resize a tuple with a second reference. How
many objects a collection visits is estimated: Python counts the new ones, and the bytes
of reviews that are held are known.

An ended TLS connection leaves free memory in fragments between live blocks: after some
thousands of connections, 500 at a time, malloc held 50 MiB of unused memory. Large
bodies have the same effect: malloc keeps the size of the largest one.
"""

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kyverno_mp.limits import (
    COLLECTED_FREED_BYTES_MIN,
    COLLECTED_HELD_BYTES_MAX,
    COLLECTED_LEFT_OBJECTS_MIN,
    COLLECTED_NEW_OBJECTS_MIN,
    COLLECTED_OBJECTS_MAX,
    NEW_OBJECTS_MAX,
    REQUEST_TIMEOUT_S_MAX,
)

_PAUSE_S: Final = 5.0
"""PERF: a collection takes about 10 ms, so consecutive changes share one. Returning 50
MiB to the kernel takes as long."""
_FREED_MIN: Final = 4 * 1024 * 1024
"""Smaller amounts of memory are reused by the next requests."""
_ENDED_MIN: Final = 200
"""Fewer connections leave too little memory to free."""
_PAUSES_KEPT_MAX: Final = 1000
_listed: Final = [object()]
_ALONE: Final = sys.getrefcount(_listed[-1])
"""The reference count of an object that is referenced only by one list."""


# musl lacks this function, but does not need it, because it keeps no free pages. Looked
# up once, because each CDLL is a reference cycle.
_malloc_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim_memory() -> None:
    """Return malloc's free pages to the kernel, where possible (glibc)."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def tune() -> None:
    """Leave collections to ``Collector``, except in an emergency.

    Python's automatic collections run while a large review is decoded, and visit
    objects that they cannot free. They doubled the time.
    """
    gc.enable()
    gc.set_threshold(NEW_OBJECTS_MAX, 1, 1)


class Collector:
    """Frees memory between two requests; call ``tick`` about once a second."""

    def __init__(
        self,
        trim_memory: Callable[[], None] = trim_memory,
        is_quiet: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_quiet``: no work is in progress that leaves reference cycles."""
        self._give_back = trim_memory
        self._is_quiet = is_quiet
        self._replaced: deque[list[object]] = deque()
        self._left = False
        self._linked: object = None
        self._survivors = 0
        """New objects that ``_freeze`` collected and could not freeze yet, at most."""
        self._ended = 0
        self._freed = 0
        self._collected_freed = 0
        self._few_s: float | None = None
        self._patience_s = REQUEST_TIMEOUT_S_MAX
        self._ran_s = 0.0

    def note(self, rules: Iterable[object] = ()) -> None:
        """Record that a snapshot with these linked rules was replaced; thread-safe."""
        self._replaced.append([rule for rule in rules if rule is not None])
        self._left = True

    @property
    def has_replaced(self) -> bool:
        """Whether ``release`` has rules to check."""
        return bool(self._replaced)

    def release(self) -> None:
        """Free the rules of replaced snapshots that no review uses any more.

        Call it in a thread, one call at a time. It frees rule by rule, because freeing
        all of them at once would hold the interpreter lock for that long.
        """
        for _ in range(len(self._replaced)):
            rules = self._replaced.popleft()
            while rules and sys.getrefcount(rules[-1]) <= _ALONE:
                rules.pop()
            if rules:
                self._replaced.append(rules)

    def linked_one(self) -> None:
        """Exclude new objects from collections, if they are many; thread-safe.

        Call it after each linked rule, so that no collection has much to visit.
        """
        if gc.get_count()[0] >= COLLECTED_NEW_OBJECTS_MIN:
            self._freeze()

    def tick(
        self,
        now_s: float,
        ended: int = 0,
        freed: int = 0,
        linked: object = None,
        held: int = 0,
    ) -> bool:
        """Free memory when due; return whether it was freed.

        ``ended`` counts the connections that ended in this worker's life; ``freed``
        counts the bytes of bodies and reviews that it has freed; ``linked`` changes
        when rules are linked; ``held``: bytes of the reviews that it holds now.
        """
        many = ended - self._ended >= _ENDED_MIN or freed - self._freed >= _FREED_MIN
        is_linking = linked != self._linked
        new = gc.get_count()[0]
        least = COLLECTED_NEW_OBJECTS_MIN
        if freed - self._collected_freed >= COLLECTED_FREED_BYTES_MIN:
            least = COLLECTED_LEFT_OBJECTS_MIN
        garbage = self._left or is_linking or new >= least
        is_short = new <= COLLECTED_OBJECTS_MAX or held <= COLLECTED_HELD_BYTES_MAX
        if self._few_s is None or is_short:
            self._few_s = now_s
        if not (garbage or many) or now_s - self._ran_s < _PAUSE_S:
            return False
        if garbage:
            self._left = False
            self._linked = linked
            self._collected_freed = freed
            if is_linking:
                self._freeze()
            elif is_short:
                gc.collect()
            else:
                self._collect_many(now_s)
        self._ended, self._freed = ended, freed
        self._ran_s = now_s
        self._give_back()
        return True

    def _freeze(self) -> None:
        """Collect what is new, and exclude the rest from later collections.

        After a while with much to visit, objects are frozen in any case. Then cycles in
        work that is in progress are never freed.
        """
        new = gc.get_count()[0]
        self._survivors += new
        many = self._survivors > COLLECTED_OBJECTS_MAX
        if new <= COLLECTED_OBJECTS_MAX:
            gc.collect(0 if many else 2)
        if many or self._is_quiet():
            gc.freeze()
            self._survivors = 0

    def _collect_many(self, now_s: float) -> None:
        """Collect even if it takes long, if no review can hold so many objects.

        An audit queue can. Therefore, after a collection that freed little, the next
        one waits longer.
        """
        if self._few_s is None or now_s - self._few_s < self._patience_s:
            return
        new = gc.get_count()[0]
        is_garbage = gc.collect() >= new // 2
        self._few_s = now_s
        self._patience_s = REQUEST_TIMEOUT_S_MAX if is_garbage else self._patience_s * 2


class LinkingLock:
    """The lock of threads that link rules; after each one, the collector looks."""

    def __init__(self, collector: Collector) -> None:
        self._lock = threading.Lock()
        self._collector = collector

    def acquire(self, blocking: bool = True) -> bool:  # noqa: FBT001, FBT002 - threading's
        """Acquire the lock; without ``blocking``, return False if it is locked."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()
        self._collector.linked_one()


class Pauses:
    """How long the collections of this process took, by generation."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._began_ns = 0
        self._seen: deque[tuple[str, float]] = deque(maxlen=_PAUSES_KEPT_MAX)

    def watch(self) -> None:
        """Start watching; it ends when this object is deleted."""
        pauses = weakref.ref(self)

        def on_collection(phase: str, info: dict[str, int]) -> None:
            found = pauses()
            if found is None:
                gc.callbacks.remove(on_collection)
            elif phase == "start":
                found.begin()
            else:
                found.end(info["generation"])

        gc.callbacks.append(on_collection)

    def drain(self) -> list[tuple[str, float]]:
        """Return (generation, seconds) of the collections since the last call."""
        # A collection in between only appends.
        return [self._seen.popleft() for _ in range(len(self._seen))]

    def begin(self) -> None:
        """Record the start of a collection."""
        self._began_ns = self._now_ns()

    def end(self, generation: int) -> None:
        """Record the end of a collection."""
        taken_s = (self._now_ns() - self._began_ns) / 1e9
        self._seen.append((str(generation), taken_s))
