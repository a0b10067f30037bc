"""Record what a process does, cheaply: one dict look-up and two cells an observation.

Room: telemetry. Takes: a Page. Gives: Recorder, used by webhook workers and the leader.
Next: collect, in the health process. May touch: its page only.

PERF: a review records one observation each of ADMISSION and HTTP and one bundle: rules
that had the same outcome on the same kind of request are one series ("17 rules passed
on a Pod of namespace a"), which collect.py spreads over the rules. So 17 rules cost
what one costs; counters are the counts of histograms and cost nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from kyverno_mp.telemetry.families import (
    ADMISSION,
    BUCKETS,
    CELLS_PER_HISTOGRAM,
    CHANGES,
    ERRORS,
    HTTP,
    RECORDED,
    RESULTS,
    Family,
)
from kyverno_mp.telemetry.page import Page

BUNDLE_FAMILY: Final = 0xFFFF
_BUNDLES_MAX: Final = 1024
"""Bundles a page holds; later outcomes are recorded rule by rule."""
_BUNDLE_KEYS_MAX: Final = 4096
_LABEL_CHARS_MAX: Final = 256
_SUM: Final = CELLS_PER_HISTOGRAM - 1
_LOWEST: Final = BUCKETS[0]


class Series:
    """The series of one family in this process."""

    def __init__(self, page: Page, family: Family, series_max: int) -> None:
        self.family = family
        self._page = page
        self._cells = page.cells
        self._number = RECORDED.index(family)
        self._width = CELLS_PER_HISTOGRAM if family.kind == "histogram" else 1
        self._series_max = series_max
        self.bases: dict[tuple[str, ...], int] = {}

    def observe(self, labels: tuple[str, ...], seconds: float) -> None:
        """Count one event that took ``seconds``. Cost: below a microsecond."""
        base = self.bases.get(labels)
        if base is None:
            base = self._open(labels)
            if base < 0:
                return
        cells = self._cells
        bucket = 0 if seconds <= _LOWEST else bisect_left(BUCKETS, seconds)
        cells[base + bucket] += 1.0
        cells[base + _SUM] += seconds

    def count(self, labels: tuple[str, ...], number: float = 1.0) -> None:
        """Add to a counter."""
        base = self.bases.get(labels)
        if base is None:
            base = self._open(labels)
            if base < 0:
                return
        self._cells[base] += number

    def _open(self, labels: tuple[str, ...]) -> int:
        if len(self.bases) >= self._series_max:
            # Not memoised under the asked labels: they may be any number.
            labels = self.family.overflow_of(labels)
            base = self.bases.get(labels)
            if base is not None:
                return base
        labels = tuple(value[:_LABEL_CHARS_MAX] for value in labels)
        base = self.bases.get(labels)
        if base is None:
            base = self._page.add_series(self._number, self._width, labels)
            if base >= 0:
                self.bases[labels] = base
        return base


class Recorder:
    """All that one process records, by name of what happened."""

    def __init__(self, page: Page, series_max: int) -> None:
        self.page = page
        self.admission = Series(page, ADMISSION, series_max)
        self.http = Series(page, HTTP, series_max)
        self.results = Series(page, RESULTS, series_max)
        self.changes = Series(page, CHANGES, series_max)
        self.errors = Series(page, ERRORS, series_max)
        self._by_number = {
            RECORDED.index(series.family): series
            for series in (
                self.admission,
                self.http,
                self.results,
                self.changes,
                self.errors,
            )
        }
        self._bundles: dict[bytes, int] = {}
        self._bundle_keys: dict[Hashable, int] = {}
        self._take_over()

    def bundle(
        self,
        key: Hashable,
        members: Callable[[], Sequence[tuple[str, ...]]],
        seconds: float,
    ) -> None:
        """Record the results of all rules of one review, ``seconds`` for all together.

        ``key`` stands for the outcome in this worker, e.g. (candidates' identity,
        namespace, operation, dry run); ``members`` is called only when the key is new
        and gives the labels of RESULTS for each rule.
        """
        base = self._bundle_keys.get(key)
        if base is None:
            rules = members()
            if not rules:
                return
            base = self._open_bundle(key, rules)
            if base < 0:
                share = seconds / len(rules)
                for labels in rules:
                    self.results.observe(labels, share)
                return
        cells = self.page.cells
        # The bucket is that of the review; collect.py puts a rule's share in its own.
        bucket = 0 if seconds <= _LOWEST else bisect_left(BUCKETS, seconds)
        cells[base + bucket] += 1.0
        cells[base + _SUM] += seconds

    def forget_bundle_keys(self) -> None:
        """Drop the keys when a new snapshot makes new candidates; numbers stay."""
        self._bundle_keys.clear()

    def _open_bundle(self, key: Hashable, rules: Sequence[tuple[str, ...]]) -> int:
        text = msgspec.json.encode(rules)
        base = self._bundles.get(text, -1)
        if base < 0 and len(self._bundles) < _BUNDLES_MAX:
            base = self.page.add_series(BUNDLE_FAMILY, CELLS_PER_HISTOGRAM, rules)
            if base >= 0:
                self._bundles[text] = base
        if base >= 0:
            if len(self._bundle_keys) >= _BUNDLE_KEYS_MAX:
                self._bundle_keys.clear()
            self._bundle_keys[key] = base
        return base

    def _take_over(self) -> None:
        """Go on with the series of the page's former owner."""
        for number, cell, text in self.page.series():
            if number == BUNDLE_FAMILY:
                self._bundles[text] = cell
            elif (series := self._by_number.get(number)) is not None:
                series.bases[tuple(msgspec.json.decode(text, type=list[str]))] = cell
