"""Merge the results of reviews into the reports of their objects.

Room: reports. Takes: EphemeralReports, the Writer, the current plan, the uids that
watches know. Gives: Merging, with a thread of its own. Next: reports/start.py runs it.
May touch: the API server through reports/ephemeral.py and the Writer; a thread.
Source: docs/behaviour/controllers 6.6; docs/pools.md 4.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.reports.entries import Row, Subject
from kyverno_mp.reports.ephemeral import LiveSubjects, ReviewResults
from kyverno_mp.reports.fingerprints import key_of
from kyverno_mp.reports.kinds import Kinds
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.writer import Writer
from kyverno_mp.telemetry.families import DEFECTS, REPORTED_OBJECTS
from kyverno_mp.values.kubernetes.kinds import KindSelector

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.5
_NAME: Final = "review-results"
NEW_RULE_S: Final = 30
"""A review may use a newer policy than this process. After this time, an unknown rule
counts as deleted, and its results are dropped."""
UidOf = Callable[[Resource, tuple[str, str]], str | None]
"""Returns the uid of an object by its key, if a watch knows the object."""


class Merging:
    """Merges the results of reviews while the lease is held."""

    def __init__(
        self,
        dependencies: ReportsDependencies,
        objects: Objects,
        writer: Writer,
        plan: Callable[[], Plan],
        uid_of: UidOf,
    ) -> None:
        """``objects``: its writes check the lease."""
        self._dependencies = dependencies
        self._writer = writer
        self._plan = plan
        self._uid_of = uid_of
        self._clock = dependencies.clock
        self._kinds = Kinds(dependencies.client, self._clock.monotonic_s)
        self._live = LiveSubjects(dependencies.client, self._resource_of)
        self.results = ReviewResults(
            dependencies.client,
            objects,
            dependencies.settings.namespace,
            self._resolve,
            lambda outcome: dependencies.metrics.count(REPORTED_OBJECTS, (outcome,)),
            lambda: int(self._clock.now().timestamp() * 1e9),
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    def start(self) -> None:
        """Start the watch and the thread."""
        self.results.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop the watch and the thread."""
        self._stopping.set()
        self.results.stop()
        self._thread.join(timeout=_TICK_S)

    def merge(self, subject: Subject, rows: list[Row]) -> bool:
        """Merge rows into a report; return False if some rows have to wait.

        Raises: DependencyError, LeaseLost.
        """
        plan = self._plan()
        if not plan.generation:
            # Without a plan, all rows would count as outdated.
            return False
        self._writer.merge(subject, rows, self._plan)
        now_s = self._clock.now().timestamp()
        return not any(
            key_of(row) not in plan.live and _age_s(row, now_s) < NEW_RULE_S
            for row in rows
        )

    def _resolve(self, subject: Subject) -> Subject | None:
        """Return the stored object. Raises: DependencyError."""
        resource = self._resource_of(subject.api_version, subject.kind)
        if resource is not None:
            uid = self._uid_of(resource, (subject.namespace, subject.name))
            if uid and subject.uid in ("", uid):
                return msgspec.structs.replace(subject, uid=uid)
        return self._live(subject)

    def _resource_of(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of a kind. Raises: DependencyError."""
        self._kinds.refresh()
        group, _, version = api_version.rpartition("/")
        found = self._kinds.of([KindSelector(group, version, kind, "")])
        return found[0] if found else None

    def _run(self) -> None:
        while not self._stopping.wait(_TICK_S):
            try:
                self.results.step(self.merge)
            except LeaseLost:
                _log.info("the lease is lost")
            except DependencyError as error:
                _log.warning("results of reviews wait: %s", error)
            except Exception:  # noqa: BLE001 - a dead thread would lose all results
                _log.exception("unexpected error with results of reviews, trying again")
                self._dependencies.metrics.count(DEFECTS, (_NAME,))


def _age_s(row: Row, now_s: float) -> float:
    return now_s - (row.timestamp.seconds if row.timestamp else 0)
