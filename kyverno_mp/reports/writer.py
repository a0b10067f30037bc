"""Update the report of one object with as few writes as possible.

Room: reports. Takes: a Subject, the results of an evaluator, the current Plan. Gives:
Writer. Next: reports/scan/dispatch.py, reports/scan/coordinator.py call it. May touch:
the API server through kube/apply.py, the clock.
Source: docs/behaviour/controllers 6.6; docs/pools.md 4 (identical results: no write).

The fingerprints in the informer of reports show whether a report differs. They are
sufficient for most writes (reports/changes.py); otherwise the report is read. Each
write has the known version as its precondition, so two writers or lease holders never
overwrite each other's changes. A row that stays keeps its time.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kyverno_mp.errors import (
    KubeConflict,
    KubeNotFound,
    KubeRefused,
    StateError,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.reports.batches import NOTHING
from kyverno_mp.reports.changes import (
    Change,
    Times,
    change_of,
    new_report,
    newer,
    places_with,
    with_reviewed,
)
from kyverno_mp.reports.feed import Keys
from kyverno_mp.reports.fingerprints import (
    each_fingerprint,
    fingerprints_of,
    joined,
    plain_row,
)
from kyverno_mp.reports.keeping import Evaluation, merged, outlasts, row_outlasts
from kyverno_mp.reports.objects import (
    LEFT_OUT,
    Report,
    ReportKinds,
    content_of,
    cut_rows,
    read_report,
    report_key,
    report_of,
)
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.stored import StoredReports
from kyverno_mp.results.entries import ROW, Row, Subject, Timestamp
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_CONFLICTS_MAX: Final = 5
_Decide: TypeAlias = Callable[[Sequence[Row]], list[Row]]
CREATED: Final = "created"
UPDATED: Final = "updated"
DELETED: Final = "deleted"
SAME: Final = "same"
FOREIGN: Final = "foreign"
"""Another program wrote a report with this name."""


class Applied(NamedTuple):
    """The outcome of a scan; ``changed``: the positions of new or changed rows.

    ``after``: the fingerprints of all rows of the report; b"" if it is not stored.
    """

    outcome: str
    changed: Sequence[int] = ()
    after: bytes = b""


class Writer:
    """Writes reports; threads may share it."""

    def __init__(
        self,
        objects: Objects,
        kinds: ReportKinds,
        stored: StoredReports,
        now_s: Callable[[], float],
        on_write: Callable[[str, int], None] = lambda _outcome, _left_out: None,
        *,
        stores: bool = True,
    ) -> None:
        """``now_s``: Unix time. ``stores``: False = reports are never written.

        ``on_write`` is called with the outcome of each write and the number of omitted
        rows.
        """
        self._objects = objects
        self._kinds = kinds
        self._stored = stored
        self._now_s = now_s
        self._on_write = on_write
        self.stores = stores

    def apply(self, subject: Subject, evaluation: Evaluation) -> Applied:
        """Write the results of a scan.

        Raises: DependencyError, LeaseLost; StateError if the results are outdated.
        """
        evaluated = evaluation.found
        if not evaluation.reviewed and self._is_written(subject, evaluation):
            stored = self._stored.get(report_key(subject))
            return Applied(SAME, (), b"" if stored is None else stored.fingerprints)
        if not self.stores:
            return Applied(SAME, range(len(evaluated.rows)))
        with self._stored.writing(report_key(subject)):
            return self._write(subject, evaluation)

    def _write(self, subject: Subject, evaluation: Evaluation) -> Applied:
        """Write the results of a scan. Raises: the errors of ``apply``."""
        evaluated = evaluation.found
        written = self._write_unread(subject, evaluation)
        if written is not None:
            return written
        scanned_rows = [ROW.decode(raw) for raw in evaluated.rows]
        changed: list[int] = []
        planned: list[Row] = []

        def decide(rows: Sequence[Row]) -> list[Row]:
            current = _newest(evaluation)
            if not rows:
                _demand_all(evaluation)
            changed[:] = evaluated.changed_from(fingerprints_of(rows))
            planned[:] = current.rows(rows, scanned_rows)
            if added := current.added_rows():
                planned[:] = merged(planned, added, current.plan)
            return planned

        outcome = self._bring(subject, decide, has_all=evaluation.only is None)
        return Applied(outcome, changed, fingerprints_of(planned))

    def prune(self, subject: Subject, plan: Plan, scanned: Keys) -> str:
        """Remove outdated rows from the report of an object.

        ``scanned``: the rules whose derived rows a scan updates; the derived rows of
        other rules are removed.
        Raises: DependencyError, LeaseLost.
        """

        def may_stay(key: bytes) -> bool:
            return outlasts(key, plan, scanned)

        written = self._change(subject, Evaluation(NOTHING, plan), may_stay)
        if written is not None:
            return written.outcome

        def kept(rows: Sequence[Row]) -> list[Row]:
            return [row for row in rows if row_outlasts(row, plan, scanned)]

        return self._bring(subject, kept)

    def merge(
        self, subject: Subject, rows: Iterable[Row], plan: Callable[[], Plan]
    ) -> str:
        """Add results of reviews; the newest result of each rule is kept.

        ``plan``: returns the current plan. Raises: DependencyError, LeaseLost.
        """
        rows = [msgspec.structs.replace(row, resources=()) for row in rows]
        with self._stored.writing(report_key(subject)):
            # No rule was evaluated, so the other rows of rules in force stay.
            added = Evaluation(NOTHING, plan(), frozenset(), reviewed=rows, newest=plan)
            written = self._write_unread(subject, added)
            if written is not None:
                return written.outcome
            return self._bring(subject, lambda stored: merged(stored, rows, plan()))

    def _is_written(self, subject: Subject, evaluation: Evaluation) -> bool:
        """Return whether the informer's report already has the results."""
        key = report_key(subject)
        if not self.stores:
            return False
        if not self._stored.is_known(key):
            return False
        stored = self._stored.get(key)
        if stored is None:
            return not evaluation.found.rows
        if not stored.is_plain:
            return False
        before = list(each_fingerprint(stored.fingerprints))
        return evaluation.fingerprints(before) == joined(before)

    def _write_unread(self, subject: Subject, evaluation: Evaluation) -> Applied | None:
        """Create or change a report without reading it; None if it has to be read.

        Raises: DependencyError, LeaseLost, StateError.
        """
        newest = self._stored.newest(report_key(subject))
        if newest is None or newest[1] is not None:
            return self._change(subject, evaluation)
        evaluation = _newest(evaluation)
        _demand_all(evaluation)
        evaluated, reviewed = with_reviewed(evaluation.found, evaluation.added_rows())
        if not evaluated.rows:
            return Applied(SAME) if self._stored.is_known(report_key(subject)) else None
        times = Times(int(self._now_s()), reviewed)
        report = new_report(self._kinds, subject, evaluated, times)
        if report is None or not self._post(subject, report):
            return None
        self._on_write(CREATED, 0)
        changed = range(len(evaluation.found.rows))
        return Applied(CREATED, changed, evaluated.fingerprints)

    def _change(
        self,
        subject: Subject,
        evaluation: Evaluation,
        may_stay: Callable[[bytes], bool] | None = None,
    ) -> Applied | None:
        """Change or delete a report without reading it; None if it has to be read.

        Raises: DependencyError, LeaseLost, StateError.
        """
        version, stored = self._stored.newest(report_key(subject)) or ("", None)
        evaluation = _newest(evaluation)
        plan, may_stay = evaluation.plan, may_stay or evaluation.stays
        # Fingerprints do not contain the source of a row.
        if stored is None or plan.unknown:
            return None
        added = newer(evaluation.added_rows(), stored)
        if added is None:
            return None
        evaluated, reviewed = with_reviewed(evaluation.found, added)
        times = Times(int(self._now_s()), reviewed)
        places = places_with(added, plan.places)
        change = change_of(stored, version, may_stay, times, evaluated, places)
        if change is None:
            return None
        changed = evaluation.found.changed_from(stored.fingerprints)
        if change.after.fingerprints == stored.fingerprints:
            # A write would fail if the report has changed since; so it is read instead.
            is_newest = self._stored.is_known(report_key(subject))
            return Applied(SAME, changed, stored.fingerprints) if is_newest else None
        if not self._patch(subject, version, change):
            return None
        outcome = UPDATED if change.body else DELETED
        self._on_write(outcome, 0)
        return Applied(outcome, changed, change.after.fingerprints)

    def _post(self, subject: Subject, change: Change) -> bool:
        """Create a report; False if it exists. Raises: DependencyError, LeaseLost."""
        resource = self._kinds.of(subject.namespace)
        try:
            version = self._objects.post(resource, subject.namespace, change.body)
        except KubeConflict:
            return False
        self._stored.wrote(report_key(subject), version, change.after)
        return True

    def _patch(self, subject: Subject, version: str, change: Change) -> bool:
        """Change or delete a report; return False if the API server rejects it.

        Raises: DependencyError, LeaseLost.
        """
        resource, key = self._kinds.of(subject.namespace), report_key(subject)
        try:
            if change.body:
                patched = self._objects.patch(resource, key, change.body)
                self._stored.wrote(key, patched, change.after)
            else:
                self._objects.delete(resource, key, resource_version=version)
                self._stored.wrote(key, "")
        except (KubeConflict, KubeNotFound, KubeRefused):
            # The next attempt reads the report and raises the actual error.
            return False
        return True

    def _bring(
        self, subject: Subject, decide: _Decide, *, has_all: bool = False
    ) -> str:
        """Read the report, decide and write; ``has_all``: also the rows it lacks."""
        for attempt in range(1, _CONFLICTS_MAX + 1):
            try:
                outcome, left_out = self._try(subject, decide, has_all=has_all)
            except KubeConflict:
                if attempt == _CONFLICTS_MAX:
                    raise
            else:
                if outcome != SAME:
                    self._on_write(outcome, left_out)
                return outcome
        raise AssertionError("the last attempt returns or raises")

    def _try(
        self, subject: Subject, decide: _Decide, *, has_all: bool
    ) -> tuple[str, int]:
        key = report_key(subject)
        live: Json | None = None
        if self._stored.get(key) is not None or not self._stored.is_known(key):
            live = self._objects.find(self._kinds.of(subject.namespace), key)
        if live is None:
            return self._create(subject, decide)
        return self._replace(subject, live, decide, has_all=has_all)

    def _create(self, subject: Subject, decide: _Decide) -> tuple[str, int]:
        rows, left_out = cut_rows(self._timed(decide([]), {}))
        if not rows:
            return SAME, 0
        resource = self._kinds.of(subject.namespace)
        try:
            created = self._objects.create(
                resource, report_of(self._kinds, subject, content_of(rows), left_out)
            )
        except KubeConflict:
            live = self._objects.find(resource, report_key(subject))
            if live is None:
                raise
            return self._replace(subject, live, decide, has_all=False)
        self._wrote(subject, created)
        return CREATED, left_out

    def _replace(
        self, subject: Subject, live: Json, decide: _Decide, *, has_all: bool
    ) -> tuple[str, int]:
        report = read_report(msgspec.json.encode(live))
        if not report.is_ours:
            _log.warning("report %s was not written by Kyverno", subject.uid)
            return FOREIGN, 0
        resource, key = self._kinds.of(subject.namespace), report_key(subject)
        times = {plain_row(row): row.timestamp for row in report.rows}
        rows_wanted = decide(report.rows)
        if not rows_wanted:
            metadata = report.metadata
            self._objects.delete(
                resource, key, metadata.uid, resource_version=metadata.resource_version
            )
            self._stored.wrote(key, "")
            return DELETED, 0
        rows, left_out = cut_rows(self._timed(rows_wanted, times))
        if not has_all:
            left_out += report.lacks
        if _is_same(report, rows, left_out):
            self._wrote(subject, live)
            return SAME, 0
        replaced = self._objects.replace(resource, _edited(live, rows, left_out))
        self._wrote(subject, replaced)
        return UPDATED, left_out

    def _wrote(self, subject: Subject, written: Json) -> None:
        self._stored.wrote(report_key(subject), written["metadata"]["resourceVersion"])

    def _timed(
        self, rows: Iterable[Row], times: Mapping[bytes, Timestamp | None]
    ) -> list[Row]:
        """Set the time of each row: from the equal stored row, its own, or now."""
        now = Timestamp(int(self._now_s()))
        return [
            msgspec.structs.replace(
                row, timestamp=times.get(plain_row(row)) or row.timestamp or now
            )
            for row in rows
        ]


def _newest(evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with the current plan. Call it when the version is known.

    Raises: StateError if another evaluation may have written the report.
    """
    if not evaluation.still_counts():
        raise StateError("reports.outdated", "the object or its policies have changed")
    return evaluation.renewed()


def _demand_all(evaluation: Evaluation) -> None:
    """Raise KubeNotFound if a new report would lack rows of other rules."""
    only, evaluated = evaluation.only, evaluation.found
    if only is not None and (evaluated.rows or (only and evaluation.reviewed)):
        raise KubeNotFound(
            "kube.not_found", "the report is gone, so all rules are evaluated again"
        )


def _edited(live: Json, rows: Sequence[Row], left_out: int) -> Json:
    metadata = dict(live["metadata"])
    annotations = dict(metadata.pop("annotations", None) or {})
    annotations.pop(LEFT_OUT, None)
    if left_out:
        annotations[LEFT_OUT] = str(left_out)
    if annotations:
        metadata["annotations"] = annotations
    return {**live, "metadata": metadata, **content_of(rows)}


def _is_same(report: Report, rows: Sequence[Row], left_out: int) -> bool:
    if report.left_out != str(left_out or "") or not report.has_right_summary:
        return False
    return fingerprints_of(rows) == fingerprints_of(report.rows)
