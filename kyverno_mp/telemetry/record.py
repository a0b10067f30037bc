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
    VALIDATING_RESULTS,
    Family,
)
from kyverno_mp.telemetry.page import Page

BUNDLE_FAMILIES: Final = {0xFFFF: RESULTS, 0xFFFD: VALIDATING_RESULTS}
"""Numbers of bundles in a page -> the family of their members."""
_BUNDLES_MAX: Final = 1024
"""Bundles of a family per page; further outcomes are recorded rule by rule."""
_LABEL_CHARS_MAX: Final = 256
_EXCLUDED: Final = 1 << 40
"""Used instead of a cell: all rules of the outcome are in excluded namespaces."""
_Labels = tuple[str, ...]


class Series:
    """The series of one family in this process."""

    def __init__(self, page: Page, family: Family, series_max: int) -> None:
        self.family = family
        self._page = page
        self.cells = page.cells
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

    def move(self, page: Page) -> None:
        """Use another page; take its series over and call ``configure`` afterwards."""
        self._page, self.cells = page, page.cells
        self._table, self._width, self.lowest, self.sum_at = 0, 1, 0.0, 1
        self.forget()

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
        cells = self.cells
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
        self.cells[base] += number

    def hold(self, labels: _Labels, value: float) -> None:
        """Set a gauge."""
        base = self.bases.get(labels)
        if base is None:
            base = self._open(labels)
            if base < 0:
                return
        self.cells[base] = value

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


class Bundles:
    """The results of whole reviews of one family, which collect.py distributes."""

    def __init__(self, series: Series, number: int) -> None:
        """``number``: that of these bundles in a page (BUNDLE_FAMILIES)."""
        self._series = series
        self._number = number
        self._known: dict[int, dict[bytes, int]] = {}
        self._keys: dict[Hashable, int] = {}
        self._keys_rules = 0
        self.configure()

    def configure(self) -> None:
        """Use the current bucket boundaries of the series."""
        self._bundles = self._known.setdefault(self._series.table, {})
        self.forget_keys()

    def forget(self) -> None:
        """Drop all bundles after the page was cleared."""
        self._known = {}

    def take_over(self, text: bytes, base: int, table: int) -> None:
        """Continue a bundle of the page's former owner."""
        self._known.setdefault(table, {})[text] = base

    def forget_keys(self) -> None:
        """Drop the keys when a new snapshot changes the candidates; keep the counts."""
        self._keys.clear()
        self._keys_rules = 0

    def observe(
        self,
        key: Hashable,
        members: Callable[[], Sequence[_Labels]],
        seconds: float,
    ) -> None:
        """Record the results of all rules of one review, which took ``seconds``.

        ``key`` identifies the outcome in this worker, e.g. (candidates' identity,
        namespace, operation, dry run); ``members`` is called only when the key is new
        and returns the labels of the family for each rule or policy.
        """
        series = self._series
        base = self._keys.get(key)
        if base is None:
            rules = [member for member in members() if series.is_counted(member)]
            base = self._open(key, rules)
            if base < 0:
                share = seconds / len(rules)
                for labels in rules:
                    series.observe(labels, share)
                return
        if base == _EXCLUDED:
            return
        # The bucket is that of the whole review; collect.py converts it to each rule's
        # share.
        bucket = 0 if seconds <= series.lowest else bisect_left(series.bounds, seconds)
        cells = series.cells
        cells[base + bucket] += 1.0
        cells[base + series.sum_at] += seconds

    def _open(self, key: Hashable, rules: Sequence[_Labels]) -> int:
        text = msgspec.json.encode(rules)
        base = self._bundles.get(text, -1) if rules else _EXCLUDED
        if base < 0 and len(self._bundles) < _BUNDLES_MAX:
            base = self._series.open_cells(self._number, rules)
            if base >= 0:
                self._bundles[text] = base
        if base >= 0:
            # A key can contain as many texts as there are rules.
            self._keys_rules += len(rules) + 1
            if self._keys_rules > METRIC_LABELS_CACHED_MAX:
                self._keys.clear()
                self._keys_rules = len(rules) + 1
            self._keys[key] = base
        return base


class Recorder:
    """The series of one process, by family."""

    def __init__(self, page: Page, series_max: int) -> None:
        self.page = page
        self._by_number = [Series(page, family, series_max) for family in RECORDED]
        self._by_name = {
            family.name: series
            for family, series in zip(RECORDED, self._by_number, strict=True)
        }
        self.admission = self.series(ADMISSION)
        self.http = self.series(HTTP)
        self.results = self.series(RESULTS)
        self.changes = self.series(CHANGES)
        self.errors = self.series(ERRORS)
        self._bundles = {
            number: Bundles(self.series(family), number)
            for number, family in BUNDLE_FAMILIES.items()
        }
        self.rules, self.policies = self._bundles.values()
        """The results of ClusterPolicies' rules, and those of ValidatingPolicies."""
        self._take_over()
        self._configuration = MetricsConfiguration()
        self.configure(self._configuration)

    def configure(self, configuration: MetricsConfiguration) -> None:
        """Apply the operator's configuration to new observations; keep old counts."""
        self._configuration = configuration
        for series in self._by_number:
            series.configure(configuration)
        for bundles in self._bundles.values():
            bundles.configure()

    def series(self, family: Family) -> Series:
        """Return the series of a family in RECORDED."""
        return self._by_name[family.name]

    def settled(self) -> Page:
        """Return the page; call it with each heartbeat, in the page's writer thread.

        A page that nobody reads is left for one in the folder once there is room.
        """
        page = None if self.page.is_read else self.page.followed_by()
        if page is None:
            return self.page
        before, self.page = self.page, page
        _pour(before, page)
        for series in self._by_number:
            series.move(page)
        for bundles in self._bundles.values():
            bundles.forget()
        self._take_over(is_own=True)
        self.configure(self._configuration)
        before.close()
        return page

    def reset(self) -> None:
        """Delete all series (metricsRefreshInterval)."""
        self.page.reset()
        for bundles in self._bundles.values():
            bundles.forget()
        for series in self._by_number:
            series.forget()
        self.configure(self._configuration)

    def _take_over(self, *, is_own: bool = False) -> None:
        """Continue the page's series; ``is_own``: they are not a former owner's."""
        for number, cell, table, text in self.page.series():
            if number in self._bundles:
                self._bundles[number].take_over(text, cell, table)
            elif number < len(self._by_number):
                series = self._by_number[number]
                labels = tuple(msgspec.json.decode(text, type=list[str]))
                series.take_over(labels, cell, table)
                if series.family.kind == "gauge" and not is_own:
                    # It described the former owner.
                    self.page.cells[cell] = 0.0


def _pour(before: Page, page: Page) -> None:
    """Add the counts of a page to another one's, and replace its gauges."""
    known: dict[tuple[int, tuple[float, ...], bytes], int] = {}
    for number, cell, table, text in page.series():
        bounds = page.bounds_of(table) if _has_bounds(number) else ()
        known[number, bounds, text] = cell
        if _is_gauge(number):
            page.cells[cell] = 0.0
    for number, cell, table, text in before.series():
        width, bounds, to = 1, (), 0
        if _has_bounds(number):
            bounds = before.bounds_of(table)
            width, to = len(bounds) + 2, page.table_of(bounds)
        base = known.get((number, bounds, text), -1)
        if base < 0 <= to:
            base = page.add_series(number, width, msgspec.json.decode(text), to)
        for at in range(width if base >= 0 else 0):
            page.cells[base + at] += before.cells[cell + at]


def _has_bounds(number: int) -> bool:
    return number in BUNDLE_FAMILIES or (
        number < len(RECORDED) and RECORDED[number].kind == "histogram"
    )


def _is_gauge(number: int) -> bool:
    return number < len(RECORDED) and RECORDED[number].kind == "gauge"
