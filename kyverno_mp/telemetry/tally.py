"""Count in any thread; the page's only writer writes the counts later.

Room: telemetry. Takes: label values. Gives: the counts since the last drain. Next:
the owner of a Page drains it. May touch: a lock.
"""

import threading
from collections.abc import Mapping
from typing import Final

_KEPT_MAX: Final = 4096
"""Maximum number of label sets between two drains, a few hundred milliseconds apart."""
Labels = tuple[str, ...]


class Timings:
    """Observations of one histogram."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observed: list[tuple[Labels, float]] = []

    def add(self, labels: Labels, seconds: float) -> None:
        """Add an observation; drop it if the table is full."""
        with self._lock:
            if len(self._observed) < _KEPT_MAX:
                self._observed.append((labels, seconds))

    def drain(self) -> list[tuple[Labels, float]]:
        """Return the observations since the last drain."""
        with self._lock:
            observed, self._observed = self._observed, []
        return observed


class Tally:
    """Counts of one family; a count costs less than a microsecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Labels, int] = {}

    def add(self, labels: Labels, number: int = 1) -> None:
        """Count one or more; drop a new label set if the table is full."""
        with self._lock:
            counts = self._counts
            if labels in counts:
                counts[labels] += number
            elif len(counts) < _KEPT_MAX:
                counts[labels] = number

    def drain(self) -> Mapping[Labels, int]:
        """Return the counts since the last drain."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts
