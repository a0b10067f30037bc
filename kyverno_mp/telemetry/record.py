"""Record observations cheaply: one dict look-up and two cells each.

Room: telemetry. Takes: a Page. Gives: Recorder, used by webhook workers and the leader.
Next: collect, in the health process. May touch: its page only.

PERF: a review records one observation each of ADMISSION and HTTP and one bundle: rules
with the same outcome on the same kind of request are one series ("17 rules passed on a
Pod of namespace a"), which collect.py distributes to the rules. So 17 rules cost as
much as one. Counters are the counts of histograms and cost nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from kyverno_mp.limits import METRIC_LABELS_CACHED_MAX
from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.families import (
    ADMISSION,
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
"""Bundles per page; the rules of further outcomes are recorded individually."""
_LABEL_CHARS_MAX: Final = 256
_HOT: Final = (ADMISSION, HTTP, RESULTS, CHANGES, ERRORS)
_SELDOM: Final = tuple(family for family in RECORDED if family not in _HOT)
_EXCLUDED: Final = 1 << 40
"""Used instead of a cell: all rules of the outcome are in excluded namespaces."""
_Labels = tuple[str, ...]


class Series:
    """The series of one family in this process."""

    def __init__(self, page: Page, family: Family, series_max: int) -> None:
        self.family = family
        self._page = page
        self._cells = page.cells
        self._number = RECORDED.index(family)
        self._series_max = series_max
        self._known: dict[int, dict[_Labels, int]] = {}
        self.bases: dict[_Labels, int] = {}
        """The series that are counted now; ``_known`` also contains the excluded
        ones."""
        self._counts: Callable[[str], bool] = lambda _: True
        self._namespace_at = (
            family.labels.index(family.by_namespace) if family.by_namespace else -1
        )
        self._table = 0
        self._width = 1
        self.bounds: tuple[float, ...] = ()
        self.lowest = 0.0
        self.sum_at = 1

    def configure(self, configuration: MetricsConfiguration) -> None:
        """Set the bucket boundaries and the counted namespaces for new observations."""
        if self.family.kind == "histogram":
            family = self.family
            self._shape(configuration.buckets_of(family.name, family.buckets))
        self._counts = configuration.counts
        known = self._known.setdefault(self._table, {})
        self.bases = {key: at for key, at in known.items() if self.is_counted(key)}

    def forget(self) -> None:
        """Drop all series after the page was cleared; call ``configure`` afterwards."""
        self._known = {}
        self.bases = {}
        self.bounds = ()

    def take_over(self, labels: _Labels, base: int, table: int) -> None:
        """Continue a series of the page's former owner."""
        self._known.setdefault(table, {})[labels] = base

    def observe(self, labels: _Labels, seconds: float) -> None:
        """Count one event that took ``seconds``. Cost: less than a microsecond."""
        base = self.bases.get(labels)
        if base is None:
            base = self._open(labels)
            if base < 0:
                return
        cells = self._cells
        bucket = 0 if seconds <= self.lowest else bisect_left(self.bounds, seconds)
        cells[base + bucket] += 1.0
        cells[base + self.sum_at] += seconds

    def count(self, labels: _Labels, number: float = 1.0) -> None:
        """Add a number to a counter."""
        base = self.bases.get(labels)
        if base is None:
            base = self._open(labels)
            if base < 0:
                return
        self._cells[base] += number

    def hold(self, labels: _Labels, value: float) -> None:
        """Set a gauge."""
        base = self.bases.get(labels)
        if base is None:
            base = self._open(labels)
            if base < 0:
                return
        self._cells[base] = value

    def is_counted(self, labels: _Labels) -> bool:
        """Return whether the operator includes this namespace in metrics."""
        at = self._namespace_at
        return at < 0 or self._counts(labels[at])

    def open_cells(self, family: int, labels: object) -> int:
        """Allocate cells for a series of ``family``; return -1 if there is no space."""
        return self._page.add_series(family, self._width, labels, self._table)

    @property
    def table(self) -> int:
        """The number of the current bucket boundaries in the page."""
        return self._table

    def _shape(self, bounds: tuple[float, ...]) -> None:
        table = self._page.table_of(bounds)
        if table < 0 and self._width == 1:
            # Without boundaries, a series would be read with those of another family.
            table, bounds = self._page.latest_table()
        if table < 0:
            # No space for more boundaries: the current ones stay until the next start.
            return
        self._table = table
        self.bounds = bounds
        self.lowest = bounds[0] if bounds else 0.0
        self.sum_at = len(bounds) + 1
        self._width = len(bounds) + 2

    def _open(self, labels: _Labels) -> int:
        if not self.is_counted(labels):
            return -1
        if len(self.bases) >= self._series_max:
            # The requested labels are not cached, because their number is unbounded.
            labels = self.family.overflow_of(labels)
            base = self.bases.get(labels)
            if base is not None:
                return base
        labels = tuple(value[:_LABEL_CHARS_MAX] for value in labels)
        base = self.bases.get(labels)
        if base is None:
            base = self.open_cells(self._number, labels)
            if base >= 0:
                self.bases[labels] = base
                self._known[self._table][labels] = base
        return base


class Recorder:
    """The series of one process, by family."""

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
                *(Series(page, family, series_max) for family in _SELDOM),
            )
        }
        self._known_bundles: dict[int, dict[bytes, int]] = {}
        self._bundle_keys: dict[Hashable, int] = {}
        self._bundle_keys_rules = 0
        self._take_over()
        self._configuration = MetricsConfiguration()
        self.configure(self._configuration)

    def configure(self, configuration: MetricsConfiguration) -> None:
        """Apply the operator's configuration to new observations; keep old counts."""
        self._configuration = configuration
        for series in self._by_number.values():
            series.configure(configuration)
        self._bundles = self._known_bundles.setdefault(self.results.table, {})
        self.forget_bundle_keys()

    def series(self, family: Family) -> Series:
        """Return the series of a family in RECORDED."""
        return self._by_number[RECORDED.index(family)]

    def reset(self) -> None:
        """Delete all series (metricsRefreshInterval)."""
        self.page.reset()
        self._known_bundles = {}
        for series in self._by_number.values():
            series.forget()
        self.configure(self._configuration)

    def bundle(
        self,
        key: Hashable,
        members: Callable[[], Sequence[_Labels]],
        seconds: float,
    ) -> None:
        """Record the results of all rules of one review, which took ``seconds``.

        ``key`` identifies the outcome in this worker, e.g. (candidates' identity,
        namespace, operation, dry run); ``members`` is called only when the key is new
        and returns the labels of RESULTS for each rule.
        """
        results = self.results
        base = self._bundle_keys.get(key)
        if base is None:
            rules = [member for member in members() if results.is_counted(member)]
            base = self._open_bundle(key, rules)
            if base < 0:
                share = seconds / len(rules)
                for labels in rules:
                    results.observe(labels, share)
                return
        if base == _EXCLUDED:
            return
        cells = self.page.cells
        # The bucket is that of the whole review; collect.py converts it to each rule's
        # share.
        bucket = (
            0 if seconds <= results.lowest else bisect_left(results.bounds, seconds)
        )
        cells[base + bucket] += 1.0
        cells[base + results.sum_at] += seconds

    def forget_bundle_keys(self) -> None:
        """Drop the keys when a new snapshot changes the candidates; keep the counts."""
        self._bundle_keys.clear()
        self._bundle_keys_rules = 0

    def _open_bundle(self, key: Hashable, rules: Sequence[_Labels]) -> int:
        text = msgspec.json.encode(rules)
        base = self._bundles.get(text, -1) if rules else _EXCLUDED
        if base < 0 and len(self._bundles) < _BUNDLES_MAX:
            base = self.results.open_cells(BUNDLE_FAMILY, rules)
            if base >= 0:
                self._bundles[text] = base
        if base >= 0:
            # A key can contain as many texts as there are rules.
            self._bundle_keys_rules += len(rules) + 1
            if self._bundle_keys_rules > METRIC_LABELS_CACHED_MAX:
                self._bundle_keys.clear()
                self._bundle_keys_rules = len(rules) + 1
            self._bundle_keys[key] = base
        return base

    def _take_over(self) -> None:
        """Continue the series of the page's former owner."""
        for number, cell, table, text in self.page.series():
            if number == BUNDLE_FAMILY:
                self._known_bundles.setdefault(table, {})[text] = cell
            elif (series := self._by_number.get(number)) is not None:
                labels = tuple(msgspec.json.decode(text, type=list[str]))
                series.take_over(labels, cell, table)
                if series.family.kind == "gauge":
                    # It described the former owner.
                    self.page.cells[cell] = 0.0
