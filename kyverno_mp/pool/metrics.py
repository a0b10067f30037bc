"""Collect the counts of a coordinator's threads for its page.

Room: pool. Takes: counts from any thread. Gives: PoolMetrics, whose ``write`` the main
thread calls. Next: telemetry/record.py. May touch: nothing but its tables.
Source: docs/behaviour/controllers 9.2.
"""

import threading
from collections.abc import Mapping
from typing import Final

from kyverno_mp.limits import POOL_OBSERVATIONS_MAX
from kyverno_mp.telemetry.families import (
    OBSERVATIONS_DROPPED,
    QUERIES,
    RECONCILED,
    REQUEUED,
    Family,
)
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally

_IN_A_ROW_MAX: Final = 10
"""Larger numbers of consecutive failures share one series, as in the leader's
metrics."""
Labels = tuple[str, ...]


class PoolMetrics:
    """Counts and gauges of one pool; thread-safe except ``write``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[Family, Tally] = {}
        self._gauges: dict[tuple[Family, Labels], float] = {}
        self._page_gauges: dict[str, int] = {}
        self._observed: list[tuple[Family, Labels, float]] = []

    def count(self, family: Family, labels: Labels) -> None:
        """Increment a counter of telemetry.families.RECORDED."""
        tally = self._tallies.get(family)
        if tally is None:
            with self._lock:
                tally = self._tallies.setdefault(family, Tally())
        tally.add(labels)

    def hold(self, family: Family, labels: Labels, value: float) -> None:
        """Set a gauge of telemetry.families.RECORDED."""
        with self._lock:
            self._gauges[family, labels] = value

    def observe(self, family: Family, labels: Labels, seconds: float) -> None:
        """Add an observation to a histogram of telemetry.families.RECORDED.

        Observations beyond the limit are dropped and counted.
        """
        with self._lock:
            if len(self._observed) < POOL_OBSERVATIONS_MAX:
                self._observed.append((family, labels, seconds))
                return
        self.count(OBSERVATIONS_DROPPED, (family.name,))

    def set_gauges(self, gauges: Mapping[str, int]) -> None:
        """Set gauges of the page, see telemetry.page.GAUGES."""
        with self._lock:
            self._page_gauges.update(gauges)

    def query(self, labels: Labels) -> None:
        """Count a request to the API server."""
        self.count(QUERIES, labels)

    def reconciled(self, controller: str, failures: int | None) -> None:
        """Count a reconcile; ``failures``: consecutive failures, None = no retry."""
        self.count(RECONCILED, (controller,))
        if failures is not None:
            times = str(min(failures, _IN_A_ROW_MAX))
            self.count(REQUEUED, (controller, times))

    def write(self, recorder: Recorder) -> None:
        """Write all values to the page; call it in the thread that writes the page."""
        with self._lock:
            tallies = dict(self._tallies)
            gauges, self._gauges = self._gauges, {}
            page_gauges, self._page_gauges = self._page_gauges, {}
            observed, self._observed = self._observed, []
        for family, tally in tallies.items():
            series = recorder.series(family)
            for labels, count in tally.drain().items():
                series.count(labels, float(count))
        for (family, labels), value in gauges.items():
            recorder.series(family).hold(labels, value)
        for family, labels, seconds in observed:
            recorder.series(family).observe(labels, seconds)
        for name, number in page_gauges.items():
            recorder.page.set_gauge(name, number)
