"""Hold the results of all stored reports, counted and sorted for pages.

Room: dashboard. Takes: the Entries of one report at a time. Gives: Results: totals,
groups, and pages of a filtered list. Next: pages.py. May touch: a lock.
Source: docs/dashboard.md.

Results that do not fit are only in the totals, until ``waiting`` returns their report
because there is space again. Counts are updated with each report, so the cost of a page
of groups depends only on the page. A list is sorted after changes, at most every few
seconds, and filtered once for all its pages. Further pages of it are therefore cheap,
too.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from kyverno_mp.dashboard.entries import (
    DIMENSIONS,
    Counts,
    Entry,
    Group,
    sorted_groups,
    total,
    urgency,
)
from kyverno_mp.limits import (
    DASHBOARD_REPORTS_MAX,
    DASHBOARD_RESULTS_BYTES_MAX,
    DASHBOARD_RESULTS_MAX,
)

_SORTED_FOR_S: Final = 10.0
"""A list is not sorted again for this long while reports change."""
Key = tuple[str, ...]
"""The identity of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The query for a list of results.

    Texts must match exactly. None selects all; namespace "" selects results of
    cluster-scoped objects.
    """

    result: str = ""
    policy: str | None = None
    severity: str | None = None
    category: str | None = None
    namespace: str | None = None
    kind: str = ""
    name: str = ""

    def accept(self, entry: Entry) -> bool:
        """Return whether the query selects a result."""
        return (
            (not self.result or entry.result == self.result)
            and (self.policy is None or entry.policy == self.policy)
            and (self.severity is None or entry.severity == self.severity)
            and (self.category is None or entry.category == self.category)
            and (self.namespace is None or entry.namespace == self.namespace)
            and (not self.kind or entry.kind == self.kind)
            and (not self.name or entry.name == self.name)
        )


EVERYTHING: Final = Query()


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a list. ``number``: from 1; ``count``: results on all pages."""

    entries: Sequence[Entry]
    number: int
    pages: int
    count: int


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of the kept data. ``size``: bytes of strings."""

    reports: int = DASHBOARD_REPORTS_MAX
    results: int = DASHBOARD_RESULTS_MAX
    size: int = DASHBOARD_RESULTS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class _Kept:
    entries: tuple[Entry, ...]
    """Empty if the report does not fit."""
    by_result: Counts
    size: int
    """Bytes of the strings of all its results, even if they do not fit."""
    version: str


class Results:
    """The results of all reports; threads may share it."""

    def __init__(self, clock_s: Callable[[], float], room: Room = Room()) -> None:
        self._clock_s = clock_s
        self._room = room
        self._lock = threading.Lock()
        self._reports: dict[Key, _Kept] = {}
        self._waiting: dict[Key, None] = {}
        """Reports that do not fit, in order of arrival."""
        self._further: dict[str, int] = {}
        """Number of results in reports beyond the limit, by report kind."""
        self._unseen: dict[str, set[Key]] = {}
        """Reports that the current list has not delivered yet, by report kind."""
        self._groups: dict[str, dict[str, Counts]] = {
            dimension: {} for dimension in DIMENSIONS
        }
        self._totals = Counts()
        self._held = 0
        self._size = 0
        self._version = 0
        self._sorted: list[Entry] = []
        self._sorted_version = 0
        self._sorted_s = float("-inf")
        self._filtered: tuple[Query, list[Entry]] | None = None
        self.looked_at = 0
        """Number of results sorted or compared with a query so far."""

    def put(self, key: Key, entries: Sequence[Entry], version: str = "") -> bool:
        """Set the results of a report; return False if there are too many reports.

        ``version``: the report's resource version.
        """
        counts, size = total(entries), _size_of(entries)
        with self._lock:
            self._version += 1
            self._remove(key)
            unseen = sum(map(len, self._unseen.values()))
            if len(self._reports) - unseen >= self._room.reports:
                self._further[key[0]] = self._further.get(key[0], 0) + counts.total
                return False
            self._add(key, entries, counts, size, version)
            return True

    def _add(
        self,
        key: Key,
        entries: Sequence[Entry],
        counts: Counts,
        size: int,
        version: str,
    ) -> None:
        fits = self._fits(len(entries), size)
        report = _Kept(tuple(entries) if fits else (), counts, size, version)
        self._reports[key] = report
        self._count(report, 1)
        if not fits:
            self._waiting[key] = None

    def _fits(self, number: int, size: int) -> bool:
        room = self._room
        return self._held + number <= room.results and self._size + size <= room.size

    def waiting(self) -> list[tuple[Key, str]]:
        """Return the waiting reports that fit now, with their versions."""
        with self._lock:
            number, size = self._held, self._size
            fitting: list[tuple[Key, str]] = []
            for key in self._waiting:
                report = self._reports[key]
                more, larger = number + report.by_result.total, size + report.size
                # A report that is too large must not block the others.
                if more <= self._room.results and larger <= self._room.size:
                    number, size = more, larger
                    fitting.append((key, report.version))
            return fitting

    def fill(self, key: Key, entries: Sequence[Entry], version: str) -> None:
        """Set the results of a waiting report, unless its version has changed."""
        counts, size = total(entries), _size_of(entries)
        with self._lock:
            if key in self._waiting and self._reports[key].version == version:
                self._version += 1
                self._remove(key)
                self._add(key, entries, counts, size, version)

    def begin(self, kind: str) -> None:
        """Prepare for a list of all reports of a kind."""
        with self._lock:
            self._further.pop(kind, None)
            self._unseen[kind] = {
                report for report in self._reports if report[0] == kind
            }

    def keep_only(self, kind: str, keys: AbstractSet[Key]) -> None:
        """Remove the reports of a kind that a list did not contain."""
        with self._lock:
            self._unseen.pop(kind, None)
            removed = [
                report
                for report in self._reports
                if report[0] == kind and report not in keys
            ]
            self._version += bool(removed)
            for key in removed:
                self._remove(key)

    def remove(self, key: Key) -> None:
        """Remove a report."""
        with self._lock:
            self._version += 1
            self._remove(key)

    def _remove(self, key: Key) -> None:
        old = self._reports.pop(key, None)
        self._waiting.pop(key, None)
        self._unseen.get(key[0], set()).discard(key)
        if old is not None:
            self._count(old, -1)

    def _count(self, report: _Kept, by: int) -> None:
        for result, number in report.by_result.of.items():
            self._totals.of[result] += by * number
        self._held += by * len(report.entries)
        self._size += by * report.size if report.entries else 0
        for entry in report.entries:
            for dimension, by_value in self._groups.items():
                value = getattr(entry, dimension)
                counts = by_value.get(value)
                if counts is None:
                    counts = by_value[value] = Counts()
                counts.of[entry.result] += by
                if by < 0 and not counts.total:
                    del by_value[value]

    def totals(self) -> Counts:
        """Return the counts of all reports, including those that do not fit."""
        with self._lock:
            return Counts(dict(self._totals.of))

    @property
    def reports(self) -> int:
        """The number of reports."""
        return len(self._reports)

    @property
    def left_out(self) -> int:
        """The number of results that are not listed for lack of space."""
        with self._lock:
            further = sum(self._further.values())
            return self._totals.total - self._held + further

    def groups(self, dimension: str) -> list[Group]:
        """Return the counts by one of DIMENSIONS, in the order of ``entries.groups``.

        ``Group.value`` is the value for the filter.
        """
        with self._lock:
            copies = {
                value: Counts(dict(counts.of))
                for value, counts in self._groups[dimension].items()
            }
        return sorted_groups(copies, dimension)

    def listed(self, query: Query, number: int, per_page: int) -> Listed:
        """Return one page; a page number that is too large returns the last page."""
        with self._lock:
            matching = self._matching(query)
            pages = max(1, -(-len(matching) // per_page))
            number = min(max(1, number), pages)
            start = (number - 1) * per_page
            chosen = matching[start : start + per_page]
            return Listed(chosen, number, pages, len(matching))

    def _matching(self, query: Query) -> list[Entry]:
        now_s = self._clock_s()
        is_due = now_s - self._sorted_s >= _SORTED_FOR_S
        if self._sorted_version != self._version and is_due:
            every = [
                entry for report in self._reports.values() for entry in report.entries
            ]
            every.sort(key=urgency)
            self.looked_at += len(every)
            self._sorted, self._filtered = every, None
            self._sorted_version, self._sorted_s = self._version, now_s
        if query == EVERYTHING:
            return self._sorted
        if self._filtered is None or self._filtered[0] != query:
            self.looked_at += len(self._sorted)
            chosen = [entry for entry in self._sorted if query.accept(entry)]
            self._filtered = query, chosen
        return self._filtered[1]


def _size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes of all strings, which mostly repeat within a report."""
    strings = {
        string
        for entry in entries
        for string in (
            entry.policy,
            entry.rule,
            entry.category,
            entry.message,
            entry.name,
        )
    }
    return sum(map(sys.getsizeof, strings))
