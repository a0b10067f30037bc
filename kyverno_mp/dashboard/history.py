"""Keep counts over time since the start of the process, in bounded memory.

Room: dashboard. Takes: the counts of groups at a moment. Gives: History, read as a
Course of one group. Next: render.py draws it. May touch: a lock.
Source: docs/dashboard.md.

When the samples are full, every second one is dropped and the interval doubles. So a
Course always begins at the start, and its points are evenly spaced.
"""

import threading
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from kyverno_mp.dashboard.entries import RESULTS, Counts
from kyverno_mp.limits import DASHBOARD_SAMPLES_MAX, DASHBOARD_SERIES_MAX

_WIDTH: Final = len(RESULTS)


class Series(NamedTuple):
    """A group over time. ``source``: REPORTS or REVIEWS; ``dimension`` "": all."""

    source: str
    dimension: str = ""
    value: str = ""


REPORTS: Final = "reports"
REVIEWS: Final = "reviews"


class Point(NamedTuple):
    """The counts at one time, in Unix time."""

    time_s: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class _Sample:
    time_s: float
    numbers: "array[float]"


class History:
    """The counts at past times; threads may share it."""

    def __init__(self, interval_s: float) -> None:
        """``interval_s``: the initial interval."""
        self._lock = threading.Lock()
        self._places: dict[Series, int] = {}
        self._samples: list[_Sample] = []
        self.interval_s = interval_s

    def add(self, time_s: float, counts: Mapping[Series, Counts]) -> None:
        """Add the counts at one time; series beyond the limit get no history."""
        with self._lock:
            for count in counts:
                if count not in self._places:
                    if len(self._places) >= DASHBOARD_SERIES_MAX:
                        continue
                    self._places[count] = len(self._places)
            numbers = array("d", bytes(8 * _WIDTH * len(self._places)))
            for series, current in counts.items():
                position = self._places.get(series)
                if position is not None:
                    for at, name in enumerate(RESULTS):
                        numbers[position * _WIDTH + at] = current.of[name]
            self._samples.append(_Sample(time_s, numbers))
            if len(self._samples) >= DASHBOARD_SAMPLES_MAX:
                # The first sample stays, because it is the start.
                del self._samples[1::2]
                self.interval_s *= 2

    def course(self, series: Series) -> list[Point]:
        """Return the counts of a group at all times; empty if it has no history."""
        with self._lock:
            position = self._places.get(series)
            if position is None:
                return []
            return [
                Point(sample.time_s, _counts(sample.numbers, position))
                for sample in self._samples
            ]


def _counts(numbers: "array[float]", position: int) -> Counts:
    chosen = numbers[position * _WIDTH : (position + 1) * _WIDTH]
    # A group that was added later is missing in older samples.
    values = [int(number) for number in chosen] or [0] * _WIDTH
    return Counts(dict(zip(RESULTS, values, strict=True)))


def increases(course: list[Point]) -> list[Point]:
    """Return the increases between points; 0 where a counter fell.

    A counter is the sum of several processes. It falls when one of them is restarted,
    and the increases of the other processes are then unknown.
    """
    points = []
    for (_, before), (time_s, after) in pairwise(course):
        grown = {name: max(0, after.of[name] - before.of[name]) for name in RESULTS}
        points.append(Point(time_s, Counts(grown)))
    return points
