"""Give back the memory that snapshots of policies and connections leave in a worker.

Room: webhook. Takes: word of each snapshot that was replaced, the count of connections
that ended. Gives: memory. Next: start.py. May touch: Python's collector, malloc.

Linked rules know one another in circles, so a replaced snapshot is garbage that only
the collector finds. It runs by itself after so many new objects (server.tune_worker)
that 17 policies, changed two hundred times, were found to hold 70 MiB of dead
snapshots.

TLS connections are freed when they end, in pieces between those that live: after some
thousands that came 500 at once malloc held 50 MiB, of which nothing was in use. So it
is with large bodies: malloc keeps what it once had as large as the largest.
"""

import ctypes
import gc
from collections.abc import Callable
from typing import Final

_PAUSE_S: Final = 5.0
"""PERF: a collection goes over all that is linked, some 10 ms for 17 policies; changes
that come one after the other share it. To give back 50 MiB takes as long."""
_FREED_MIN: Final = 4 * 1024 * 1024
"""Fewer bytes of bodies are taken again by the next."""
_ENDED_MIN: Final = 200
"""Fewer connections leave too little to look for."""


def give_back() -> None:
    """Let malloc give free pages to the kernel, where it can (glibc)."""
    # musl has no such function, and nothing to give back: it keeps no free pages.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Collector:
    """Frees memory between two requests; ``tick`` about once a second."""

    def __init__(self, give_back: Callable[[], None] = give_back) -> None:
        self._give_back = give_back
        self._left = False
        self._ended = 0
        self._freed = 0
        self._ran_s = 0.0

    def note(self) -> None:
        """Say that an snapshot was replaced; may be called in any thread."""
        self._left = True

    def tick(self, now_s: float, ended: int = 0, freed: int = 0) -> bool:
        """Free when it is time; tell whether it was.

        ``ended``: connections that ended in this worker's life; ``freed``: bytes of
        bodies and of reviews that it held, and has no more.
        """
        many = ended - self._ended >= _ENDED_MIN or freed - self._freed >= _FREED_MIN
        if not (self._left or many) or now_s - self._ran_s < _PAUSE_S:
            return False
        if self._left:
            self._left = False
            gc.collect()
        self._ended, self._freed = ended, freed
        self._ran_s = now_s
        self._give_back()
        return True
