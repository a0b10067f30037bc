"""Merge the results of reviews into the reports of their objects.

Room: reports. Takes: EphemeralReports, the Writer, the current plan, the uids that
watches know. Gives: Merging, with a thread of its own. Next: reports/start.py runs it.
May touch: the API server through reports/ephemeral.py and the Writer; a thread.
Source: docs/behaviour/controllers 6.6; docs/pools.md 4.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, Protocol

from kyverno_mp.errors import DependencyError, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import RESULTS_FAILED_S_MAX, RESULTS_LATE_S_MAX
from kyverno_mp.reports.claims import Claims
from kyverno_mp.reports.ephemeral import ReviewResults
from kyverno_mp.reports.fingerprints import key_of
from kyverno_mp.reports.flights import Reviewed
from kyverno_mp.reports.keeping import stays
from kyverno_mp.reports.kinds import Kinds
from kyverno_mp.reports.notify import Notifier
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.writer import Writer
from kyverno_mp.results.entries import Row, Subject, seconds_of
from kyverno_mp.telemetry.families import (
    DEFECTS,
    REPORTED_BACKLOG,
    REPORTED_BACKLOG_AGE,
    REPORTED_OBJECTS,
    REPORTED_REPORTS,
)
from kyverno_mp.values.kubernetes.kinds import KindSelector

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.5
_IDLE_S: Final = 5.0
_FAILED_S: Final = 5.0
_NAME: Final = "review-results"
NEW_RULE_S: Final = 30
"""A review may use a newer policy than this process. After this time, an unknown rule
counts as deleted, and its results are dropped."""


class Scanned(Protocol):
    """The objects that scans watch."""

    def uid_of(self, resource: Resource, key: Key) -> str | None:
        """Return the uid of an object, None if no watch has received it.

        Raises: KeyError if the resource is not watched, or its watch fails.
        """

    def attach(
        self, resource: Resource, subject: Subject, rows: list[Row]
    ) -> Reviewed | None:
        """Let the pending scan of an object write its rows, too.

        None: no scan is pending.
        """


class Merging:
    """Merges the results of reviews while the lease is held."""

    def __init__(
        self,
        dependencies: ReportsDependencies,
        objects: Objects,
        writer: Writer,
        plan: Callable[[], Plan],
        scanned: Scanned,
        notifier: Notifier | None = None,
    ) -> None:
        """``objects``: its writes check the lease."""
        self._dependencies = dependencies
        self._writer = writer
        self._plan = plan
        self._scanned = scanned
        self._notifier = notifier
        self._clock = dependencies.clock
        self._kinds = Kinds(
            dependencies.client, self._clock.monotonic_s, dependencies.served
        )
        self.claims = Claims(
            dependencies.client,
            self._resource_of,
            scanned.uid_of,
            self._now_ns,
            self._failed,
        )
        self.results = ReviewResults(
            dependencies.client,
            objects,
            dependencies.settings.namespace,
            self.claims,
            lambda outcome: dependencies.metrics.count(REPORTED_OBJECTS, (outcome,)),
            self._now_ns,
        )
        self._stopping = threading.Event()
        self._news = threading.Event()
        self.results.informer.on_notified(self._news.set)
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    def start(self) -> None:
        """Start the watch and the thread."""
        self.results.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop the watch and the thread."""
        self._stopping.set()
        self._news.set()
        self.results.stop()
        self._thread.join(timeout=_TICK_S)
        # The next lease holder reports what waits.
        for family in (REPORTED_REPORTS, REPORTED_BACKLOG, REPORTED_BACKLOG_AGE):
            self._dependencies.metrics.hold(family, (), 0.0)

    def merge(self, subject: Subject, rows: list[Row]) -> bool:
        """Merge rows into a report; return False if some rows have to wait.

        An unexpected error concerns only this object. Its rows are dropped after a
        while. Raises: DependencyError, LeaseLost.
        """
        try:
            return self._merge(subject, rows)
        except (DependencyError, LeaseLost):
            raise
        except Exception:  # noqa: BLE001 - the results of other objects are merged
            self._failed(subject)
            oldest_s = self._clock.now().timestamp() - RESULTS_FAILED_S_MAX
            return all(seconds_of(row) <= oldest_s for row in rows)

    def _failed(self, subject: Subject) -> None:
        """Log and count an unexpected error."""
        _log.exception("unexpected error with results of reviews of %s", subject.uid)
        self._dependencies.metrics.count(DEFECTS, (_NAME,))

    def _merge(self, subject: Subject, rows: list[Row]) -> bool:
        plan = self._plan()
        if not plan.generation:
            # Without a plan, all rows would count as outdated.
            return False
        results_before = self._known(subject)
        self._writer.merge(subject, rows, self._plan)
        self._notify(
            subject, [row for row in rows if key_of(row) in plan.live], results_before
        )
        return not self._may_follow(rows, plan)

    def _known(self, subject: Subject) -> Mapping[bytes, str]:
        """Return the results that are no news, if there is somebody to tell."""
        return {} if self._notifier is None else self._notifier.known(subject)

    def _notify(
        self, subject: Subject, rows: list[Row], results_before: Mapping[bytes, str]
    ) -> None:
        if self._notifier is not None:
            self._notifier.add_reviewed(subject, rows, results_before)

    def _may_follow(self, rows: list[Row], plan: Plan) -> bool:
        """Return whether the plan may still get the policies of some rows."""
        now_s = self._clock.now().timestamp()
        return any(
            key_of(row) not in plan.live and now_s - seconds_of(row) < NEW_RULE_S
            for row in rows
        )

    def join(self, subject: Subject, rows: list[Row]) -> "Future[bool] | None":
        """Let the pending scan of the object write the rows, too; None = no scan.

        Raises: LeaseLost.
        """
        try:
            return self._join(subject, rows)
        except LeaseLost:
            raise
        except Exception:  # noqa: BLE001 - the results of other objects are merged
            self._failed(subject)
            return None

    def _join(self, subject: Subject, rows: list[Row]) -> "Future[bool] | None":
        plan = self._plan()
        if not plan.generation or self._may_follow(rows, plan):
            return None
        staying = [row for row in rows if stays(key_of(row), plan, is_scanned=False)]
        try:
            resource = self._resource_of(subject.api_version, subject.kind)
        except DependencyError:
            return None
        if not staying or resource is None:
            return None
        results_before = self._known(subject)
        reviewed = self._scanned.attach(resource, subject, staying)
        if reviewed is None:
            return None
        self._notify(subject, staying, results_before)
        return reviewed.is_written

    def problems(self) -> list[str]:
        """Return the current problems."""
        late_s = self._age_s()
        problems = []
        if late_s > RESULTS_LATE_S_MAX:
            minutes = int(late_s // 60)
            problems.append(
                f"results of reviews wait for their reports for {minutes} minutes"
            )
        if self.results.problem:
            problems.append(
                f"merged results cannot be removed from EphemeralReports:"
                f" {self.results.problem}"
            )
        return problems

    def hold_gauges(self) -> None:
        """Set the gauges of the backlog."""
        metrics, backlog = self._dependencies.metrics, self.results.backlog
        metrics.hold(REPORTED_REPORTS, (), float(backlog.reports))
        metrics.hold(REPORTED_BACKLOG, (), float(backlog.results))
        metrics.hold(REPORTED_BACKLOG_AGE, (), round(self._age_s(), 3))

    def _age_s(self) -> float:
        """Return the age of the oldest result that is not merged."""
        oldest_ns = self.results.backlog.oldest_ns
        return max(0.0, (self._now_ns() - oldest_ns) / 1e9) if oldest_ns else 0.0

    def _now_ns(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)

    def _resource_of(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of a kind. Raises: DependencyError."""
        self._kinds.refresh()
        group, _, version = api_version.rpartition("/")
        resources = self._kinds.of([KindSelector(group, version, kind, "")])
        return resources[0] if resources else None

    def _await_results(self) -> None:
        """Wait until the watch has news: nothing else brings results."""
        self._news.wait(_IDLE_S)
        self._news.clear()

    def _run(self) -> None:
        pause_s = _TICK_S
        while not self._stopping.wait(pause_s):
            pause_s = _FAILED_S
            try:
                self.results.step(self.merge, self.join)
                pause_s = 0.0 if self.results.has_more else _TICK_S
                if not self.results.backlog.reports:
                    self._await_results()
                    pause_s = 0.0
            except LeaseLost:
                _log.info("the lease is lost")
            except DependencyError as error:
                _log.warning("results of reviews wait: %s", error)
            except Exception:  # noqa: BLE001 - a dead thread would lose all results
                if self._stopping.is_set():
                    # The threads that merge have ended. The results stay stored.
                    return
                _log.exception("unexpected error with results of reviews, trying again")
                self._dependencies.metrics.count(DEFECTS, (_NAME,))
