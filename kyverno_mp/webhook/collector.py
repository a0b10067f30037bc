"""Free memory in a worker without holding up its event loop.

Room: webhook. Takes: the rules of each replaced snapshot, how many rules are linked,
the count of ended connections. Gives: memory; how long collections took. Next:
start.py. May touch: Python's garbage collector, malloc.

A collection visits every object that it is to compare, with the interpreter locked:
ten thousand linked policies are two million objects, and two seconds; a large review
takes as long to visit as to decode. So the collector never visits them. Linked rules
form no reference cycles, a replaced one is freed by its last reference, and many linked
rules are frozen, which takes them out of its lists. Collections run here only, when
what is left is little. Reviews and connections are to leave nothing to them: an error
that is kept beyond its ``except`` block would hold its review (errors.without_frames).
If one does all the same, two rules find it: many bytes of reviews since the last
collection, and more objects, for longer than any review takes.

An ended TLS connection leaves free memory in fragments between live ones: after some
thousands of connections, 500 at a time, malloc held 50 MiB without any use. Large
bodies have the same effect: malloc stays at the size of the largest.
"""

import ctypes
import gc
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kyverno_mp.limits import (
    COLLECTED_FREED_BYTES_MIN,
    COLLECTED_LEFT_OBJECTS_MIN,
    COLLECTED_NEW_OBJECTS_MIN,
    COLLECTED_OBJECTS_MAX,
    NEW_OBJECTS_MAX,
    REQUEST_TIMEOUT_S_MAX,
)

_PAUSE_S: Final = 5.0
"""PERF: a collection takes about 10 ms; consecutive changes share one. Returning 50 MiB
to the kernel takes as long."""
_FREED_MIN: Final = 4 * 1024 * 1024
"""The next requests reuse smaller amounts of memory."""
_ENDED_MIN: Final = 200
"""Fewer connections leave too little memory to free."""
_PAUSES_KEPT_MAX: Final = 1000
_listed: Final = [object()]
_ALONE: Final = sys.getrefcount(_listed[-1])
"""The count of references to an object that nothing but one list refers to."""


def trim_memory() -> None:
    """Return malloc's free pages to the kernel, where possible (glibc)."""
    # musl lacks this function, but does not need it: it keeps no free pages.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def tune() -> None:
    """Leave collections to ``Collector``, except in need.

    Python's own come while a large review is decoded, and visit what they cannot free:
    they doubled the time.
    """
    gc.enable()
    gc.set_threshold(NEW_OBJECTS_MAX, 1, 1)


class Collector:
    """Frees memory between two requests; call ``tick`` about once a second."""

    def __init__(self, trim_memory: Callable[[], None] = trim_memory) -> None:
        self._give_back = trim_memory
        self._replaced: deque[list[object]] = deque()
        self._left = False
        self._linked: object = None
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
        """Whether ``release`` has something to do."""
        return bool(self._replaced)

    def release(self) -> None:
        """Free the rules of replaced snapshots that no review uses any more.

        In a thread, one call at a time. Rule by rule, because freeing the last
        reference to all of them would lock the interpreter for as long as it takes.
        """
        for _ in range(len(self._replaced)):
            rules = self._replaced.popleft()
            while rules and sys.getrefcount(rules[-1]) <= _ALONE:
                rules.pop()
            if rules:
                self._replaced.append(rules)

    def tick(
        self, now_s: float, ended: int = 0, freed: int = 0, linked: object = None
    ) -> bool:
        """Free memory when due; return whether it was freed.

        ``ended``: connections that ended in this worker's life; ``freed``: bytes of
        bodies and reviews that the worker has freed so far; ``linked``: changes when
        rules are linked.
        """
        many = ended - self._ended >= _ENDED_MIN or freed - self._freed >= _FREED_MIN
        is_linking = linked != self._linked
        new = gc.get_count()[0]
        least = COLLECTED_NEW_OBJECTS_MIN
        if freed - self._collected_freed >= COLLECTED_FREED_BYTES_MIN:
            least = COLLECTED_LEFT_OBJECTS_MIN
        garbage = self._left or is_linking or new >= least
        if self._few_s is None or new <= COLLECTED_OBJECTS_MAX:
            self._few_s = now_s
        if not (garbage or many) or now_s - self._ran_s < _PAUSE_S:
            return False
        if garbage:
            self._left = False
            self._linked = linked
            self._collected_freed = freed
            if not _collect(may_freeze=is_linking):
                self._collect_many(now_s)
        self._ended, self._freed = ended, freed
        self._ran_s = now_s
        self._give_back()
        return True

    def _collect_many(self, now_s: float) -> None:
        """Collect even if it takes long, when no review can hold that many objects.

        An audit queue can: after a collection that freed little, the next waits longer.
        """
        if self._few_s is None or now_s - self._few_s < self._patience_s:
            return
        new = gc.get_count()[0]
        is_garbage = gc.collect() >= new // 2
        self._few_s = now_s
        self._patience_s = REQUEST_TIMEOUT_S_MAX if is_garbage else self._patience_s * 2


def _collect(*, may_freeze: bool) -> bool:
    """Collect everything, or freeze it if that would take long; False: neither.

    What is frozen is freed by its last reference, but in a cycle it never is: so only
    what linking has made many objects of is frozen.
    """
    # PERF: the list takes 20 ns an object.
    few = gc.get_count()[0] <= COLLECTED_OBJECTS_MAX
    if few and len(gc.get_objects()) <= COLLECTED_OBJECTS_MAX:
        gc.collect()
    elif may_freeze:
        gc.freeze()
    else:
        return False
    return True


class Pauses:
    """How long the collections of this process took, by generation."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._began_ns = 0
        self._seen: deque[tuple[str, float]] = deque(maxlen=_PAUSES_KEPT_MAX)

    def watch(self) -> None:
        """Begin; it ends with this object."""
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
        """Record that a collection begins."""
        self._began_ns = self._now_ns()

    def end(self, generation: int) -> None:
        """Record that it has ended."""
        taken_s = (self._now_ns() - self._began_ns) / 1e9
        self._seen.append((str(generation), taken_s))
