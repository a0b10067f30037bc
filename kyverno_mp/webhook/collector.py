"""Free the memory that replaced snapshots and ended connections leave in a worker.

Room: webhook. Takes: notice of each replaced snapshot, the count of ended connections.
Gives: memory. Next: start.py. May touch: Python's collector, malloc.

Linked rules form reference cycles, so only the garbage collector frees a replaced
snapshot. By itself it runs only after many new objects (server.tune_worker): 17
policies, changed two hundred times, left 70 MiB of dead snapshots.

An ended TLS connection leaves free memory in fragments between live ones: after some
thousands of connections, 500 at a time, malloc held 50 MiB without any use. Large
bodies have the same effect: malloc stays at the size of the largest.
"""

import ctypes
import gc
from collections.abc import Callable
from typing import Final

_PAUSE_S: Final = 5.0
"""PERF: a collection visits all linked rules, about 10 ms for 17 policies; consecutive
changes share one. Returning 50 MiB to the kernel takes as long."""
_FREED_MIN: Final = 4 * 1024 * 1024
"""The next requests reuse smaller amounts of memory."""
_ENDED_MIN: Final = 200
"""Fewer connections leave too little memory to free."""


def trim_memory() -> None:
    """Return malloc's free pages to the kernel, where possible (glibc)."""
    # musl lacks this function, but does not need it: it keeps no free pages.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Collector:
    """Frees memory between two requests; call ``tick`` about once a second."""

    def __init__(self, trim_memory: Callable[[], None] = trim_memory) -> None:
        self._give_back = trim_memory
        self._left = False
        self._ended = 0
        self._freed = 0
        self._ran_s = 0.0

    def note(self) -> None:
        """Record that a snapshot was replaced; thread-safe."""
        self._left = True

    def tick(self, now_s: float, ended: int = 0, freed: int = 0) -> bool:
        """Free memory when due; return whether it was freed.

        ``ended``: connections that ended in this worker's life; ``freed``: bytes of
        bodies and reviews that the worker has freed so far.
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
