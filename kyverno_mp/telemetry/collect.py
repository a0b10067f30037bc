"""Merge the pages of all processes, living and dead, into one set of numbers.

Room: telemetry. Takes: the directory of pages. Gives: merged series of RECORDED.
Next: expose. May touch: reads page files.
"""

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kyverno_mp.telemetry.families import (
    BUCKETS,
    CELLS_PER_HISTOGRAM,
    RECORDED,
    RESULTS,
    Family,
)
from kyverno_mp.telemetry.page import View
from kyverno_mp.telemetry.record import BUNDLE_FAMILY

Merged = dict[Family, dict[tuple[str, ...], list[float]]]
"""Shape: family -> label values -> cells (a histogram's, or one)."""
_SUM = CELLS_PER_HISTOGRAM - 1
_DECODER = msgspec.json.Decoder(list[str])
_BUNDLE_DECODER = msgspec.json.Decoder(list[list[str]])


def views(directory: Path) -> list[View]:
    """Return a view of every readable page, by name; vanished files are left out."""
    found = []
    for path in sorted(directory.glob("*.page")):
        try:
            view = View(path)
        except OSError:
            continue
        if view.readable:
            found.append(view)
    return found


def merge(pages: Iterable[View]) -> Merged:
    """Add up the series of all pages."""
    merged: Merged = {family: {} for family in RECORDED}
    for page in pages:
        for number, text, cells in page.series():
            if number == BUNDLE_FAMILY:
                _spread(merged[RESULTS], _BUNDLE_DECODER.decode(text), cells)
            elif number < len(RECORDED):
                family = RECORDED[number]
                width = CELLS_PER_HISTOGRAM if family.kind == "histogram" else 1
                labels = tuple(_DECODER.decode(text))
                _add(merged[family], labels, cells[:width])
    return merged


def _add(
    series: dict[tuple[str, ...], list[float]], labels: tuple[str, ...], by: list[float]
) -> None:
    known = series.get(labels)
    if known is None:
        series[labels] = by
        return
    for index, value in enumerate(by):
        known[index] += value


def _spread(
    series: dict[tuple[str, ...], list[float]],
    members: list[list[str]],
    cells: list[float],
) -> None:
    """Give each rule of a bundle its even share of the reviews' time.

    The sum is exact. The bucket of a share follows from its review's bucket bound, so
    a review in [0.005, 0.01] s of 17 rules puts each in the lowest bucket.
    """
    count = len(members)
    shared = [0.0] * CELLS_PER_HISTOGRAM
    for index, seen in enumerate(cells[:_SUM]):
        if seen:
            bound = BUCKETS[index] if index < len(BUCKETS) else float("inf")
            shared[bisect_left(BUCKETS, bound / count)] += seen
    shared[_SUM] = cells[_SUM] / count
    for labels in members:
        _add(series, tuple(labels), list(shared))
