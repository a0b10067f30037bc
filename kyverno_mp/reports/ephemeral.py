"""Merge the results of reviews in EphemeralReports into the reports of their objects.

Room: reports. Takes: the API server, a function that finds the stored objects, a
function that merges the results for one object into its report. Gives: ReviewResults.
Next: reports/claims.py finds the objects, reports/unmerged.py removes merged results;
leader/results/reports.py writes EphemeralReports. May touch: the API server through
kube/, the wall clock.
Source: docs/pools.md 4; docs/behaviour/controllers 6.6.

The lease holder calls ``step`` repeatedly. A step merges the results for a limited
number of objects and removes them from their reports, which are deleted when nothing is
left. Results that still wait for their object stay for the next lease holder. Merging a
result twice is harmless.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import (
    RESULT_MERGERS,
    RESULTS_JOINED_S_MAX,
    RESULTS_MERGED_AT_ONCE_MAX,
)
from kyverno_mp.reports.claims import Claim
from kyverno_mp.reports.unmerged import Backlog, Report, UnmergedReports, report_of
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.results.newest import (
    ADMISSION,
    EPHEMERAL_REPORTS,
    SOURCE_LABEL,
    Result,
    ResultKey,
    row_of_bytes,
)

_log = logging.getLogger(__name__)
_AGAIN_S: Final = 5
"""Pause before results are merged again whose merge failed or has to wait."""
_SECOND_NS: Final = 10**9
MERGED: Final = "merged"
Join = Callable[[Subject, list[Row]], "Future[bool] | None"]
"""Lets the pending scan of an object write its rows, too; None if there is no such
scan. The future is False if the rows have to be merged separately."""
Merge = Callable[[Subject, list[Row]], bool]
"""Merges rows into the report of an object; returns False if it has to be retried.

Several threads may call it. Raises: DependencyError."""


class _Joined(NamedTuple):
    """Results that the pending scan of their object writes, since ``at_ns``."""

    future: "Future[bool]"
    results: dict[ResultKey, Result]
    at_ns: int

    @property
    def is_written(self) -> bool:
        """Whether the scan has written the results."""
        return self.future.done() and self.future.result()

    def has_ended(self, now_ns: int) -> bool:
        """Return whether the scan has ended or takes too long."""
        first_ns = now_ns - RESULTS_JOINED_S_MAX * _SECOND_NS
        # The wall clock may jump.
        return self.future.done() or not first_ns < self.at_ns <= now_ns


def _join_nothing(_subject: Subject, _rows: list[Row]) -> None:
    """Merge all results separately."""


class ReviewResults:
    """Merges the results of reviews into reports; one thread calls ``step``."""

    def __init__(
        self,
        client: Client,
        objects: Objects,
        namespace: str,
        claim: Claim,
        count: Callable[[str], None] = lambda _outcome: None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``objects``: its writes check the lease. ``now_ns``: the wall clock.

        ``count``: called with the outcome of each object.
        """
        scope = WatchScope(
            resource=EPHEMERAL_REPORTS,
            namespace=namespace,
            label_selector=f"{SOURCE_LABEL}={ADMISSION}",
        )
        self.informer: Informer[Report] = Informer(client, scope, report_of)
        self._reports = UnmergedReports(self.informer, objects, now_ns)
        self._claim = claim
        self._count = count
        self._now_ns = now_ns
        self._mergers = ThreadPoolExecutor(RESULT_MERGERS, "merge-results")
        self._joined: dict[Subject, _Joined] = {}
        """Results that stay in their EphemeralReports until their scans end."""
        self._again_ns: dict[Subject, int] = {}
        """Objects whose results wait until then, because a merge failed."""
        self.has_more = False
        """Whether the last step has left results that need not wait."""
        self.backlog = Backlog()
        """What the last step has left."""

    @property
    def problem(self) -> str:
        """Why merged results cannot be removed; "" = no problem."""
        return self._reports.problem

    def start(self) -> None:
        """Start the watch."""
        self.informer.start()

    def stop(self) -> None:
        """Stop the watch, and wait for running merges."""
        self.informer.stop()
        self._mergers.shutdown(wait=True, cancel_futures=True)

    def step(self, merge: Merge, join: Join = _join_nothing) -> bool:
        """Merge new results; return False if some have to be looked at again soon.

        It does not wait for scans: one slow scan would delay the results of all other
        objects. Raises: LeaseLost, DependencyError.
        """
        ended = self._ended()
        self._reports.refresh()
        newest = self._reports.newest()
        keys_of, merged = self._claimed(newest)
        rows: dict[Subject, list[Row]] = {}
        for stored in self._chosen(keys_of, ended):
            results = {key: newest[key] for key in keys_of[stored]}
            if not self._has_joined(stored, results, ended.get(stored), join):
                rows[stored] = _rows(results.values())
        unmerged = self._merge_all(rows, merge)
        for stored in rows:
            if stored in unmerged:
                self._again_ns[stored] = self._now_ns() + _AGAIN_S * _SECOND_NS
            else:
                merged.update(keys_of[stored])
                self._count(MERGED)
        self._reports.remove(merged, newest)
        self.backlog = self._reports.backlog()
        return not unmerged and not self._joined

    def _claimed(
        self, newest: Mapping[ResultKey, Result]
    ) -> tuple[dict[Subject, list[ResultKey]], set[ResultKey]]:
        """Return the results by stored object, and the results to drop.

        One object may occur twice: before it has a uid, and after.
        Raises: DependencyError.
        """
        times: dict[Subject, int] = {}
        keys: dict[Subject, list[ResultKey]] = {}
        for key, result in newest.items():
            subject = key[0]
            times[subject] = max(times.get(subject, 0), result.at_ns)
            keys.setdefault(subject, []).append(key)
        claimed = self._claim(times)
        dropped: set[ResultKey] = set()
        for subject, outcome in claimed.dropped.items():
            dropped.update(keys[subject])
            self._count(outcome)
        keys_of: dict[Subject, list[ResultKey]] = {}
        for subject, its_keys in keys.items():
            stored = claimed.stored.get(subject)
            if stored is not None:
                keys_of.setdefault(stored, []).extend(its_keys)
        return keys_of, dropped

    def _chosen(
        self, keys_of: Mapping[Subject, object], ended: Mapping[Subject, _Joined]
    ) -> list[Subject]:
        """Return the objects whose results are merged in this step."""
        now_ns = self._now_ns()
        self._again_ns = {
            stored: at_ns for stored, at_ns in self._again_ns.items() if at_ns > now_ns
        }
        ready = [
            stored
            for stored in keys_of
            if stored not in self._joined
            and stored not in self._again_ns
            and stored not in ended
        ]
        self.has_more = len(ready) > RESULTS_MERGED_AT_ONCE_MAX
        first = [stored for stored in ended if stored in keys_of]
        return first + ready[:RESULTS_MERGED_AT_ONCE_MAX]

    def _has_joined(
        self,
        subject: Subject,
        results: dict[ResultKey, Result],
        ended: _Joined | None,
        join: Join,
    ) -> bool:
        """Let a pending scan write results; return False if no scan is pending.

        ``results``: those that a scan has written are removed from it.
        """
        if ended is not None:
            if not ended.is_written:
                # It failed or took too long, and the next one may do so, too.
                return False
            for key, result in ended.results.items():
                if results.get(key) == result:
                    del results[key]
        future = join(subject, _rows(results.values())) if results else None
        if future is not None:
            self._joined[subject] = _Joined(future, results, self._now_ns())
        return future is not None

    def _ended(self) -> dict[Subject, _Joined]:
        """Return and forget the results whose scans have ended or take too long.

        A scan may write the rows even later; merging them twice is harmless.
        """
        now_ns = self._now_ns()
        joined = self._joined.items()
        ended = {subject: entry for subject, entry in joined if entry.has_ended(now_ns)}
        for subject in ended:
            del self._joined[subject]
        return ended

    def _merge_all(self, rows: dict[Subject, list[Row]], merge: Merge) -> set[Subject]:
        """Merge all rows; return the objects whose rows have to be merged again.

        Raises: LeaseLost.
        """
        unmerged: set[Subject] = set()

        def merge_rows(subject: Subject) -> None:
            try:
                is_merged = merge(subject, rows[subject])
            except DependencyError as error:
                _log.warning("results of reviews wait: %s", error)
                is_merged = False
            if not is_merged:
                unmerged.add(subject)

        list(self._mergers.map(merge_rows, [row for row in rows if rows[row]]))
        return unmerged


def _rows(results: Iterable[Result]) -> list[Row]:
    """Return the rows; of several for the same rule, the newest."""
    newest: dict[tuple[str, ...], Row] = {}
    for result in sorted(results, key=lambda result: result.at_ns):
        row = row_of_bytes(result)
        newest[row.merge_key] = row
    return list(newest.values())
