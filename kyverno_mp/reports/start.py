"""Run the reports pool while this replica holds the lease.

Room: reports. Takes: ReportsDependencies, an event that ends it. Gives: ``run``.
Next: process/roles/reports.py calls it. May touch: threads, the clock; the API server
through the parts of this room.
Source: docs/behaviour/controllers 6; docs/pools.md 1, 4.

The threads, and what each writes:
    caller       health and gauges, every few seconds
    informer-*   what is known of objects and of reports; feeds changed objects
    scan         lists what has to be evaluated again; removes outdated rows
    reports-*    asks evaluators, and writes reports
    retry        feeds objects whose report failed
    review-*     merges what reviews found
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from kyverno_mp.errors import DependencyError, KubeNotFound, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Call
from kyverno_mp.limits import (
    REPORTS_POLICIES_BYTES_MAX,
    REPORTS_RETRIES_MAX,
    REPORTS_WATCHES_MAX,
)
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.feed import Feed, Item
from kyverno_mp.reports.merging import Merging
from kyverno_mp.reports.objects import OPEN_REPORTS, POLICY_REPORTS
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.scan.coordinator import Scan
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.dispatch import NAME, Dispatch
from kyverno_mp.reports.scan.events import ScanEvents
from kyverno_mp.reports.stored import StoredReports
from kyverno_mp.reports.writer import Applied, Writer
from kyverno_mp.telemetry.families import (
    DEFECTS,
    REPORTS_DROPPED,
    REPORTS_LEFT_OUT,
    REPORTS_OBJECTS,
    REPORTS_STALENESS,
    REPORTS_WAITING,
    REPORTS_WRITES,
)

_log = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(least_s=1.0, most_s=300.0)
_WRITERS: Final = 6
"""Writes under way: each waits for the API server most of its time."""
_TICK_S: Final = 0.5
_HEALTH_S: Final = 5.0
_STOP_S: Final = 3.0
_FAILING: Final = 3
T = TypeVar("T")


def run(dependencies: ReportsDependencies, stop: threading.Event) -> None:
    """Scan and write reports until ``stop`` is set or the lease is lost."""
    reports = Reports(dependencies)
    reports.start()
    reported_s = float("-inf")
    try:
        while not stop.wait(_TICK_S) and dependencies.holds_lease():
            if time.monotonic() - reported_s >= _HEALTH_S:
                dependencies.health(reports.problems())
                reports.hold_gauges()
                reported_s = time.monotonic()
    finally:
        reports.stop()


def _failing(informers: Sequence[Informer[T]]) -> list[str]:
    return [
        f"watch of {one.scope.resource.name}: {one.last_error}"
        for one in informers
        if one.failures >= _FAILING
    ]


class _Failed(NamedTuple):
    group: str
    plural: str
    namespace: str
    name: str


def _failed(item: Item) -> _Failed:
    resource = item.source.resource
    return _Failed(resource.group, resource.plural, *item.key)


class Reports:
    """The parts of one term as lease holder, and their threads."""

    def __init__(self, dependencies: ReportsDependencies) -> None:
        self._dependencies = dependencies
        settings, clock = dependencies.settings, dependencies.clock
        self._stopping = threading.Event()
        self.feed = Feed(sharers=_WRITERS)
        kinds = OPEN_REPORTS if settings.reports_open else POLICY_REPORTS
        self.stored = StoredReports(dependencies.client, kinds)
        self.writer = Writer(
            Objects(dependencies.client, self._guard),
            kinds,
            self.stored,
            lambda: clock.now().timestamp(),
            self._count_write,
            stores=settings.reports_store and settings.reports_aggregate,
        )
        self.scan = Scan(dependencies, self.feed, self.writer, self.stored)
        self._outdated: dict[_Failed, tuple[float, bool]] = {}
        """Since when reports are outdated that could not be written, and whether their
        object changed."""
        self.retries: WorkQueue[_Failed] = WorkQueue(
            depth_max=REPORTS_RETRIES_MAX,
            backoff=_BACKOFF,
            clock_s=clock.monotonic_s,
        )
        self.events = ScanEvents(
            dependencies.events,
            dependencies.metrics,
            dependencies.successes,
            clock.monotonic_s,
        )
        self.dispatch = Dispatch(
            self.feed,
            dependencies.evaluators,
            self.writer,
            self._plan,
            dependencies.metrics,
            self,
            clock_s=clock.monotonic_s,
        )
        self.merging = Merging(
            dependencies,
            Objects(dependencies.client, self._guard),
            self.writer,
            self._plan,
            self._uid_of,
        )
        works = [("scan", self._scan), ("retry", self._feed_retries)]
        works += [(f"reports-{n}", self._dispatch) for n in range(_WRITERS)]
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in works
        ]

    def start(self) -> None:
        """Start all threads."""
        for informer in self.stored.informers:
            informer.start()
        for thread in self._threads:
            thread.start()
        if self._merges:
            self.merging.start()

    @property
    def _merges(self) -> bool:
        """Whether results of reviews are merged into reports."""
        settings = self._dependencies.settings
        return settings.reports_admission and settings.reports_aggregate

    def stop(self) -> None:
        """End all threads; calls that are under way are waited for."""
        self._stopping.set()
        if self._merges:
            self.merging.stop()
        self.feed.close()
        self.retries.shut_down(drain=False)
        self.scan.stop()
        for informer in self.stored.informers:
            informer.stop()
        end_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def problems(self) -> list[str]:
        """Return the current problems."""
        watches = [one.watch.informer for one in list(self.scan.resources.values())]
        found = [*_failing(self.stored.informers), *_failing(watches)]
        found += _failing(self.scan.admission.informers)
        if self.scan.admission.left_out:
            found.append(
                f"{self.scan.admission.left_out} admission policies above the limit of"
                f" {REPORTS_POLICIES_BYTES_MAX} bytes are not reported"
            )
        if self._merges:
            found += _failing([self.merging.results.informer])
        if self.scan.left_out:
            found.append(
                f"{self.scan.left_out} kinds above the limit of {REPORTS_WATCHES_MAX}"
                " are not scanned"
            )
        return [*found, self.scan.problem] if self.scan.problem else found

    def hold_gauges(self) -> None:
        """Set the gauges."""
        metrics = self._dependencies.metrics
        metrics.hold(REPORTS_WAITING, (), float(self.feed.pending))
        for one in list(self.scan.resources.values()):
            labels = (one.resource.plural,)
            metrics.hold(REPORTS_OBJECTS, labels, float(len(one.watch)))

    def failed(self, item: Item) -> None:
        """Feed an object once more after a pause, which grows while it fails."""
        key = _failed(item)
        since = self._outdated.get(key)
        if since is not None or len(self._outdated) < REPORTS_RETRIES_MAX:
            found = (item.since_s, item.is_change)
            self._outdated[key] = found if since is None else min(since, found)
        dropped = self.retries.dropped
        self.retries.retry(key)
        if self.retries.dropped != dropped:
            self._dependencies.metrics.count(REPORTS_DROPPED, ())

    def found(
        self, item: Item, applied: Applied, evaluated: Evaluated, plan: Plan
    ) -> None:
        """Submit the Events of rows that changed."""
        self.events.tell(item.subject, applied, evaluated, plan)

    def succeeded(self, item: Item, *, is_written: bool) -> None:
        """Forget how often an object failed; observe how old its report was."""
        key = _failed(item)
        self.retries.forget(key)
        found = (item.since_s, item.is_change)
        since_s, is_change = min(found, self._outdated.pop(key, found))
        if is_written:
            cause = "object" if is_change else "scan"
            age_s = self._dependencies.clock.monotonic_s() - since_s
            metrics = self._dependencies.metrics
            metrics.observe(REPORTS_STALENESS, (cause,), max(0.0, age_s))

    def feed_due(self, timeout_s: float | None = 0) -> bool:
        """Feed the next object that failed and is due; False when none is."""
        key = self.retries.get(timeout_s)
        if key is None:
            return False
        try:
            self._read(key)
        except DependencyError as error:
            _log.warning(error.message)
            self.retries.retry(key)
        finally:
            self.retries.done(key)
        return True

    def _read(self, key: "_Failed") -> None:
        """Read and feed an object, unless it is gone. Raises: DependencyError."""
        one = self.scan.resources.get((key.group, key.plural))
        if one is None:
            self._outdated.pop(key, None)
            return
        path = one.resource.object((key.namespace, key.name))
        try:
            raw = self._dependencies.client.call(Call(method="GET", path=path))
        except KubeNotFound:
            self._outdated.pop(key, None)
            return
        one.watch.evaluate(raw, self._dependencies.clock.monotonic_s())

    def _feed_retries(self) -> None:
        while self.feed_due(timeout_s=None):
            pass

    def _plan(self) -> Plan:
        return self.scan.plan

    def _uid_of(self, resource: Resource, key: Key) -> str | None:
        one = self.scan.resources.get((resource.group, resource.plural))
        known = None if one is None else one.watch.get(key)
        return None if known is None else known.uid

    def _scan(self) -> None:
        while not self._stopping.is_set():
            try:
                self.scan.tick()
            except LeaseLost:
                _log.info("the lease is lost")
            except Exception:  # noqa: BLE001 - a dead thread would stop the pool
                _log.exception("unexpected error in a scan, trying again")
                self._dependencies.metrics.count(DEFECTS, (NAME,))
            self._stopping.wait(_TICK_S)

    def _dispatch(self) -> None:
        # Without the stored reports, each object would cost a call.
        while not self.stored.synced:
            if self._stopping.wait(_TICK_S / 10):
                return
        self.dispatch.work()

    def _guard(self) -> None:
        if self._stopping.is_set() or not self._dependencies.holds_lease():
            raise LeaseLost("reports.lease_lost", "the reports lease is not held")

    def _count_write(self, outcome: str, left_out: int) -> None:
        metrics = self._dependencies.metrics
        metrics.count(REPORTS_WRITES, (outcome,))
        if left_out:
            metrics.count(REPORTS_LEFT_OUT, ())
