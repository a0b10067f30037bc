"""Decide which rows of a report stay after a scan, a review or a policy change.

Room: reports. Takes: rows or fingerprints, results, the current Plan. Gives: Evaluation
and the wanted rows of a report. Next: reports/writer.py.
Source: docs/behaviour/controllers 6.6; docs/pools.md 4.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.feed import Keys
from kyverno_mp.reports.fingerprints import (
    KEY_BYTES,
    each_fingerprint,
    joined,
    key_of,
)
from kyverno_mp.reports.plan import Plan
from kyverno_mp.results.entries import Row, seconds_of


def _always() -> bool:
    return True


class Evaluation(NamedTuple):
    """The results for an object, to be written according to a plan.

    ``only``: the rules that were evaluated, None = all. ``still_counts``: whether
    neither the object nor its rules have changed since. ``reviewed``: results of
    reviews to be written with them. ``newest``: returns the current plan, None =
    ``plan`` is current.
    """

    found: Evaluated
    plan: Plan
    only: Keys | None = None
    still_counts: Callable[[], bool] = _always
    reviewed: Sequence[Row] = ()
    newest: Callable[[], Plan] | None = None

    def renewed(self) -> "Evaluation":
        """Return the evaluation with the current plan.

        Rows of a policy that was added meanwhile may already be stored.
        """
        return self if self.newest is None else self._replace(plan=self.newest())

    def added_rows(self) -> list[Row]:
        """Return the results of reviews for rules without a result of the scan."""
        if not self.reviewed:
            return []
        new_keys = {
            fingerprint[:KEY_BYTES]
            for fingerprint in each_fingerprint(self.found.fingerprints)
        }
        newest: dict[bytes, Row] = {}
        for row in self.reviewed:
            key = key_of(row)
            is_wanted = key not in new_keys and stays(key, self.plan, is_scanned=False)
            before = newest.get(key)
            if is_wanted and (not before or seconds_of(row) >= seconds_of(before)):
                newest[key] = row
        return list(newest.values())

    def stays(self, key: bytes) -> bool:
        """Return whether to keep a row without a new result."""
        is_open = key in self.found.waiting
        is_open = is_open or (self.only is not None and key not in self.only)
        return stays(key, self.plan, is_scanned=is_open)

    def fingerprints(self, stored: Sequence[bytes]) -> bytes:
        """Return the fingerprints of the rows that ``rows`` would return."""
        new = list(each_fingerprint(self.found.fingerprints))
        keys = {fingerprint[:KEY_BYTES] for fingerprint in new}
        remaining = [
            fingerprint
            for fingerprint in stored
            if fingerprint[:KEY_BYTES] not in keys
            and self.stays(fingerprint[:KEY_BYTES])
        ]
        return joined((*remaining, *new))

    def rows(self, stored: Sequence[Row], new: Sequence[Row]) -> list[Row]:
        """Return the rows after the evaluation: the new ones, and those that stay."""
        keys = {key_of(row) for row in new}
        unknown = self.plan.unknown
        remaining = [
            row
            for row in stored
            if key_of(row) not in keys
            and (row.source in unknown or self.stays(key_of(row)))
        ]
        return [*remaining, *new]


def stays(key: bytes, plan: Plan, *, is_scanned: bool) -> bool:
    """Return whether a stored row may stay if no scan produces it."""
    return key in plan.live and (is_scanned or key not in plan.derived)


def outlasts(key: bytes, plan: Plan, scanned: Keys) -> bool:
    """Return whether a stored row may stay after a change of policies.

    ``scanned``: the rules of all lanes that scan objects of its kind. A derived rule
    that no longer names the kind has no rows there.
    """
    return key in plan.live and (key in scanned or not _is_derived(key, plan))


def _is_derived(key: bytes, plan: Plan) -> bool:
    return key in plan.derived or (
        plan.images is not None and key in plan.images.derived
    )


def row_outlasts(row: Row, plan: Plan, scanned: Keys) -> bool:
    """Return whether a row may stay, including rows whose policies are unknown."""
    return row.source in plan.unknown or outlasts(key_of(row), plan, scanned)


def is_outdated(fingerprints: bytes, plan: Plan, scanned: Keys) -> bool:
    """Return whether ``prune`` may change the report, judged by fingerprints only."""
    return not all(
        outlasts(fingerprint[:KEY_BYTES], plan, scanned)
        for fingerprint in each_fingerprint(fingerprints)
    )


def merged(stored: Sequence[Row], new: Iterable[Row], plan: Plan) -> list[Row]:
    """Return the rows after a review.

    KYVERNO: upstream keeps the stored row in equal seconds, here the row that is merged
    later replaces it. That is the row of the later review, unless two replicas did the
    reviews: rows have no fractions of seconds.
    """
    new_rows = {
        key_of(row): row
        for row in stored
        if row.source in plan.unknown or key_of(row) in plan.live
    }
    for row in new:
        key = key_of(row)
        before = new_rows.get(key)
        if not stays(key, plan, is_scanned=False):
            continue
        if before is None or seconds_of(row) >= seconds_of(before):
            new_rows[key] = row
    return list(new_rows.values())
