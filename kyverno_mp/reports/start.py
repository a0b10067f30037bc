"""Run the reports pool while this replica holds the lease.

Room: reports. Takes: ReportsDependencies, an event that stops it. Gives: ``run``. Next:
process/roles/reports.py calls it. May touch: threads, the clock; the API server through
the parts of this room.
Source: docs/behaviour/controllers 6; docs/pools.md 1, 4.

The threads, and what each writes:
    caller       health and gauges, every few seconds
    informer-*   what is known of objects and of reports; feeds changed objects
    scan         lists what has to be evaluated again; removes outdated rows
    reports-*    asks evaluators, and writes reports
    retry        feeds objects whose report failed
    review-*     merges what reviews found
    notify       tells the operator's receiver about new failures
"""

import threading
from collections.abc import Callable
from typing import Any

from kyverno_mp.errors import LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import (
    REPORTS_INTERVAL_S,
    REPORTS_POLICIES_BYTES_MAX,
    REPORTS_REVIEW_S,
    REPORTS_WATCHES_MAX,
    REPORTS_WRITERS,
)
from kyverno_mp.pool.term import join, run_term, watch_problems
from kyverno_mp.reports.feed import Feed, Pace
from kyverno_mp.reports.flights import Reviewed
from kyverno_mp.reports.merging import Merging
from kyverno_mp.reports.notify import Notifier
from kyverno_mp.reports.objects import OPEN_REPORTS, POLICY_REPORTS
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.scan.coordinator import Scan
from kyverno_mp.reports.scan.dependencies import Evaluators, ReportsDependencies
from kyverno_mp.reports.scan.events import ScanEvents
from kyverno_mp.reports.scan.image_lane import ImageScan, shares_of
from kyverno_mp.reports.scan.lane import Lane
from kyverno_mp.reports.stored import StoredReports
from kyverno_mp.reports.writer import Writer
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.snapshot.undecoded import undecoded_problem
from kyverno_mp.telemetry.families import (
    REPORTS_IMAGES_WAITING,
    REPORTS_LEFT_OUT,
    REPORTS_OBJECTS,
    REPORTS_WAITING,
    REPORTS_WRITES,
)


def run(dependencies: ReportsDependencies, stop: threading.Event) -> None:
    """Scan and write reports until ``stop`` is set or the lease is lost."""
    run_term(Reports(dependencies), dependencies, stop)


class Reports:
    """The parts and threads of one term as lease holder."""

    def __init__(self, dependencies: ReportsDependencies) -> None:
        self._dependencies = dependencies
        settings, clock = dependencies.settings, dependencies.clock
        self._stopping = threading.Event()
        pace = Pace(REPORTS_REVIEW_S if self._merges else 0.0, REPORTS_INTERVAL_S)
        self.feed = Feed(REPORTS_WRITERS, pace=pace, clock_s=clock.monotonic_s)
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
        self.events = ScanEvents(
            dependencies.events,
            dependencies.metrics,
            dependencies.successes,
            clock.monotonic_s,
        )
        self.notifier = self._notifier_of(dependencies)
        self.scan = Scan(dependencies, self.feed, self.writer, self.stored)
        self.lane = self._lane(
            self.feed, self.scan, dependencies.evaluators, self._plan
        )
        self.dispatch, self.feed_due = self.lane.dispatch, self.lane.feed_due
        self.images: Lane | None = None
        """The image lane, or None if images are not evaluated."""
        if dependencies.image_evaluators is not None:
            feed = Feed(REPORTS_WRITERS, batch_objects=1, shares_of=shares_of)
            self.images = self._lane(
                feed,
                ImageScan(dependencies, feed, self.scan),
                dependencies.image_evaluators,
                lambda: self.scan.plan.images or Plan(),
            )
        self._lanes = [self.lane] + ([self.images] if self.images else [])
        self.stored.on_listed = self._retry_now
        self.merging = Merging(
            dependencies,
            Objects(dependencies.client, self._guard),
            self.writer,
            self._plan,
            self,
            self.notifier,
        )

    def _notifier_of(self, dependencies: ReportsDependencies) -> Notifier | None:
        """Return what tells of new failures; without reports, all would be new."""
        if dependencies.receive is None or not self.writer.stores:
            return None
        return Notifier(
            dependencies.receive,
            dependencies.metrics,
            self._may_write,
            self.stored.results,
            dependencies.clock,
            interval_s=float(dependencies.settings.notify_interval_s),
            form=dependencies.settings.notify_format,
        )

    def _lane(
        self,
        feed: Feed,
        scan: Scan | ImageScan,
        evaluators: Evaluators,
        plan: Callable[[], Plan],
    ) -> Lane:
        is_main = scan is self.scan
        return Lane(
            self._dependencies,
            feed,
            scan,
            evaluators=evaluators,
            writer=self.writer,
            stored=self.stored,
            plan=plan,
            events=self.events,
            notifier=self.notifier,
            threads=REPORTS_WRITERS,
            name="reports" if is_main else "images",
            is_observed=is_main,
        )

    def start(self) -> None:
        """Start all threads."""
        for informer in self.stored.informers:
            informer.start()
        if self.notifier is not None:
            self.notifier.start()
        for lane in self._lanes:
            lane.start()
        if self._merges:
            self.merging.start()

    def _retry_now(self) -> None:
        """Write the reports whose kind, or whose API server, was away."""
        for lane in self._lanes:
            lane.retries.hasten()

    @property
    def _merges(self) -> bool:
        """Whether results of reviews are merged into reports."""
        settings = self._dependencies.settings
        return settings.reports_admission and settings.reports_aggregate

    def stop(self) -> None:
        """Stop all threads; wait for calls in progress."""
        self._stopping.set()
        if self.notifier is not None:
            self.notifier.stop()
        if self._merges:
            self.merging.stop()
        for lane in self._lanes:
            lane.stop()
        for informer in self.stored.informers:
            informer.stop()
        join(thread for lane in self._lanes for thread in lane.threads)

    def problems(self) -> list[str]:
        """Return the current problems."""
        watches = [
            resource.watch.informer
            for lane in self._lanes
            for resource in list(lane.scan.resources.values())
        ]
        admission = self.scan.admission.informers
        informers: list[Informer[Any]] = [*self.stored.informers, *watches, *admission]
        problems = watch_problems(informers)
        if self.scan.admission.left_out:
            problems.append(
                f"{self.scan.admission.left_out} admission policies above the limit of"
                f" {REPORTS_POLICIES_BYTES_MAX} bytes are not reported"
            )
        if self._merges:
            problems += watch_problems([self.merging.results.informer])
            problems += self.merging.problems()
        problems += undecoded_problem(self.scan.plan.undecoded)
        left_out = max(lane.scan.left_out for lane in self._lanes)
        if left_out:
            problems.append(
                f"{left_out} kinds above the limit of {REPORTS_WATCHES_MAX}"
                " are not scanned"
            )
        return problems + [
            lane.scan.problem for lane in self._lanes if lane.scan.problem
        ]

    def report(self) -> None:
        """Set the gauges."""
        metrics = self._dependencies.metrics
        metrics.hold(REPORTS_WAITING, (), float(self.feed.pending))
        if self._merges:
            self.merging.hold_gauges()
        if self.images is not None:
            waiting = self.images.feed.pending + self.images.retries.known_count
            metrics.hold(REPORTS_IMAGES_WAITING, (), float(waiting))
        for scanned in list(self.scan.resources.values()):
            labels = (scanned.resource.plural,)
            metrics.hold(REPORTS_OBJECTS, labels, float(len(scanned.watch)))

    def _plan(self) -> Plan:
        return self.scan.plan

    def uid_of(self, resource: Resource, key: Key) -> str | None:
        """Return the uid of an object, None if no watch has received it.

        Raises: KeyError if the resource is not watched, or its watch fails.
        """
        watch = self.scan.resources[resource.group, resource.plural].watch
        entry = watch.get(key)
        if entry is None and (not watch.informer.synced or watch.informer.failures):
            raise KeyError(resource.plural)
        return None if entry is None else entry.uid

    def attach(
        self, resource: Resource, subject: Subject, rows: list[Row]
    ) -> Reviewed | None:
        """Let the pending scan of an object write its rows, too; None = no scan."""
        scanned = self.scan.resources.get((resource.group, resource.plural))
        if scanned is None or not self.writer.stores:
            return None
        self.feed.expect_reviews(scanned.watch)
        key = subject.namespace, subject.name
        return self.feed.attach(scanned.watch, key, subject.uid, rows)

    def _may_write(self) -> bool:
        return not self._stopping.is_set() and self._dependencies.holds_lease()

    def _guard(self) -> None:
        if not self._may_write():
            raise LeaseLost("reports.lease_lost", "the reports lease is not held")

    def _count_write(self, outcome: str, left_out: int) -> None:
        metrics = self._dependencies.metrics
        metrics.count(REPORTS_WRITES, (outcome,))
        if left_out:
            metrics.count(REPORTS_LEFT_OUT, ())
