"""Merge the metric pages of all processes, running or not, into one set of series.

Room: telemetry. Takes: the directory of pages. Gives: merged series of RECORDED.
Next: expose. May touch: reads page files.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.families import RECORDED, Family
from kyverno_mp.telemetry.page import View
from kyverno_mp.telemetry.record import BUNDLE_FAMILIES

Cells = list[float]
Merged = dict[Family, dict[tuple[str, ...], Cells]]
"""Family -> label values -> cells. A histogram has one cell for each of its bucket
boundaries, one for larger values and one for the sum; other kinds have one cell."""
_DECODER = msgspec.json.Decoder(list[str])
_BUNDLE_DECODER = msgspec.json.Decoder(list[list[str]])
_NOBODY = MetricsConfiguration()


def views(directory: Path) -> list[View]:
    """Return a view of every readable page, by name; skip pages that vanish."""
    found = []
    for path in sorted(directory.glob("*.page")):
        try:
            view = View(path)
        except OSError:
            continue
        if view.readable:
            found.append(view)
    return found


def merge(
    pages: Iterable[View], configuration: MetricsConfiguration = _NOBODY
) -> Merged:
    """Add up the series of all pages, using the current bucket boundaries."""
    merged: Merged = {family: {} for family in RECORDED}
    bounds_of = {
        family: configuration.buckets_of(family.name, family.buckets)
        for family in RECORDED
    }
    for page in pages:
        for number, text, cells, bounds in page.series():
            bundled = BUNDLE_FAMILIES.get(number)
            if bundled is not None:
                members = _BUNDLE_DECODER.decode(text)
                shared = refit(cells, bounds, bounds_of[bundled], len(members))
                for rule in members:
                    _add(merged[bundled], tuple(rule), list(shared))
            elif number < len(RECORDED):
                family = RECORDED[number]
                labels = tuple(_DECODER.decode(text))
                if family.kind == "histogram":
                    fitted = refit(cells, bounds, bounds_of[family])
                    _add(merged[family], labels, fitted)
                else:
                    _add(merged[family], labels, cells[:1])
    return merged


def refit(
    cells: Cells, bounds: Sequence[float], wanted: Sequence[float], sharers: int = 1
) -> Cells:
    """Convert a histogram to other boundaries; divide each time by ``sharers``.

    Count and sum stay exact. Observations between two boundaries are counted in the
    upper bucket, so they never look faster than they were. For example, a review of 17
    rules in [0.005, 0.01] s counts each rule in the lowest bucket.
    """
    if sharers == 1 and tuple(bounds) == tuple(wanted):
        return cells
    found = [0.0] * (len(wanted) + 2)
    *counts, total_s = cells
    for index, seen in enumerate(counts):
        if seen:
            bound = bounds[index] if index < len(bounds) else float("inf")
            found[bisect_left(wanted, bound / sharers)] += seen
    found[-1] = total_s / sharers
    return found


def _add(
    series: dict[tuple[str, ...], Cells], labels: tuple[str, ...], by: Cells
) -> None:
    known = series.get(labels)
    if known is None:
        series[labels] = by
        return
    for index, value in enumerate(by):
        known[index] += value
