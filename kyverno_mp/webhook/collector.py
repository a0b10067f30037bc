"""Free what editions of policies leave behind in a worker.

Room: webhook. Takes: word of each edition that was replaced. Gives: memory.
Next: start.py. May touch: Python's collector.

Linked rules know one another in circles, so a replaced edition is garbage that only the
collector finds. It runs by itself after so many new objects (server.tune_worker) that
17 policies, changed two hundred times, were found to hold 70 MiB of dead editions.
"""

import gc
from typing import Final

_PAUSE_S: Final = 5.0
"""PERF: a collection goes over all that is linked, some 10 ms for 17 policies; changes
that come one after the other share it."""


class Collector:
    """Runs Python's collector between two requests; ``tick`` about once a second."""

    def __init__(self) -> None:
        self._left = False
        self._ran_s = 0.0

    def note(self) -> None:
        """Say that an edition was replaced; may be called in any thread."""
        self._left = True

    def tick(self, now_s: float) -> bool:
        """Collect when it is time; tell whether it was."""
        if not self._left or now_s - self._ran_s < _PAUSE_S:
            return False
        self._left = False
        self._ran_s = now_s
        gc.collect()
        return True
