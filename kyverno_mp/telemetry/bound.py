"""Bound the number of lines that all metric families together expose.

Room: telemetry. Takes: merged series. Gives: the series to expose. Next: expose.
Source: docs/metrics.md (bounds).

Each process bounds the series of a family, but not the sum: many families, processes
and rules could expose more lines than a monitoring system stores. A series that was
exposed stays exposed, because a counter must not decrease; further ones are added to
the series of their family in which OVERFLOW replaces the values from requests.
"""

from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.collect import Cells, Merged
from kyverno_mp.telemetry.families import Family

_EXTRA_LINES = 4
"""Of a histogram, besides its boundaries: ``+Inf``, the sum, the count and the counter
that is counted as its count."""


class ExposedSeries:
    """The series that were exposed so far; keep one for the life of a process."""

    def __init__(self, lines_max: int) -> None:
        self._lines_max = lines_max
        self._lines = 0
        self._exposed: dict[Family, set[tuple[str, ...]]] = {}

    def bounded(self, merged: Merged, configuration: MetricsConfiguration) -> Merged:
        """Return the series to expose; the sums over each family stay the same."""
        found: Merged = {}
        for family, series in merged.items():
            exposed = self._exposed.setdefault(family, set())
            cost = _lines_of(family, configuration)
            rows: dict[tuple[str, ...], Cells] = {}
            for labels, cells in series.items():
                if labels not in exposed and self._lines + cost > self._lines_max:
                    _add(rows, family.overflow_of(labels), cells)
                    continue
                if labels not in exposed:
                    exposed.add(labels)
                    self._lines += cost
                _add(rows, labels, cells)
            found[family] = rows
        return found


def _lines_of(family: Family, configuration: MetricsConfiguration) -> int:
    if family.kind != "histogram":
        return 1
    return len(configuration.buckets_of(family.name, family.buckets)) + _EXTRA_LINES


def _add(
    rows: dict[tuple[str, ...], Cells], labels: tuple[str, ...], by: Cells
) -> None:
    known = rows.get(labels)
    rows[labels] = (
        by if known is None else [a + b for a, b in zip(known, by, strict=True)]
    )
