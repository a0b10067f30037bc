"""Watch the scanned resources, and list objects that have to be scanned again.

Room: reports. Takes: the rules that may match each resource, a Feed. Gives: ObjectScan,
one for each lane. Next: coordinator.py, image_lane.py. May touch: the API server
through kube, the clock.
Source: docs/behaviour/controllers 6.3, 6.4; docs/pools.md 4.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from kyverno_mp.errors import (
    DependencyError,
    KubeNotFound,
    KubeRefused,
    SnapshotUnusable,
)
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.watch import WatchScope, list_pages
from kyverno_mp.limits import REPORTS_WATCHES_MAX
from kyverno_mp.reports.feed import Feed, Keys
from kyverno_mp.reports.plan import ScannedRule
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.due import EVERYWHERE, Scanned
from kyverno_mp.reports.scan.watches import KindWatch
from kyverno_mp.telemetry.families import REPORTS_OBJECTS, REPORTS_SCAN
from kyverno_mp.values.records import UNDECODABLE

_log = logging.getLogger(__name__)
_DATA_PAUSE_S: Final = 10.0
"""Minimum time between scans caused by data that changes all the time."""
ResourceId: TypeAlias = tuple[str, str]
Wanted: TypeAlias = Mapping[ResourceId, tuple[Resource, list[ScannedRule]]]
"""The resources of a lane, each with the rules that may match."""


class ObjectScan:
    """The resources of one lane; one thread runs the steps, others may read."""

    def __init__(
        self, dependencies: ReportsDependencies, feed: Feed, *, has_gauges: bool = True
    ) -> None:
        """``has_gauges``: whether the gauges describe this lane."""
        self._dependencies = dependencies
        self._clock_s = dependencies.clock.monotonic_s
        self._feed = feed
        self._has_gauges = has_gauges
        self.resources: dict[ResourceId, Scanned] = {}
        self.problem = ""
        self.left_out = 0
        """Number of kinds that are not scanned, because there are too many."""
        self._list_problems: dict[ResourceId, str] = {}
        """Why the last list of a kind failed."""
        self._labels_at = 0
        self._labels: Mapping[str, bytes] | None = None
        self._data: tuple[int, ...] | None = None
        self._data_s = float("-inf")
        self._full_s = self._clock_s()

    def stop(self) -> None:
        """Stop all watches; the feed must be closed already."""
        for resource in self.resources.values():
            resource.watch.stop()

    def _run(self, steps: Iterable[Callable[[], None]]) -> None:
        """Run all steps; a failed step runs again at the next tick.

        Raises: LeaseLost.
        """
        problems = []
        for step in steps:
            try:
                step()
            except (DependencyError, SnapshotUnusable) as error:
                problems.append(error.message)
                _log.warning(error.message)
        self._hold_scans()
        self.problem = "; ".join([*problems, *self._list_problems.values()])

    def _in_force(self, keys: Keys) -> Keys:
        """Return the keys of rules in force; the rows of other rules are swept."""
        return keys

    def _is_whole(self, _report: Key) -> bool:
        """Return whether a report has all rows, except those of changed rules."""
        return False

    def _follow(self, resources: Wanted, changed: Mapping[ResourceId, Keys]) -> None:
        """Scan these resources, with the rules that may match each.

        ``changed``: rules that were different for a while, even if they are the same
        now.
        """
        for key in [key for key in self.resources if key not in resources]:
            self._drop(key)
        for key, (resource, rules) in resources.items():
            self._take_up(key, resource, rules, changed.get(key, frozenset()))
        self.left_out = len(resources) - len(self.resources)

    def _take_up(
        self,
        key: ResourceId,
        resource: Resource,
        rules: list[ScannedRule],
        changed: Keys,
    ) -> None:
        scanned = self.resources.get(key)
        if scanned is not None and scanned.resource.version != resource.version:
            self._drop(key)
            scanned = None
        if scanned is not None:
            changed = self._in_force(changed | scanned.take_rules(rules))
            if changed:
                scanned.mark([EVERYWHERE], self._clock_s(), changed)
        elif len(self.resources) < REPORTS_WATCHES_MAX:
            client, clock = self._dependencies.client, self._dependencies.clock
            watch = KindWatch(client, resource, self._feed, clock)
            scanned_now = self.resources[key] = Scanned(watch, rules)
            scanned_now.started_s = self._clock_s()
            watch.start()

    def _drop(self, key: ResourceId) -> None:
        ended = self.resources.pop(key)
        ended.watch.stop()
        self._list_problems.pop(key, None)
        if self._has_gauges:
            self._dependencies.metrics.hold(REPORTS_OBJECTS, (key[1],), 0.0)

    def _follow_labels(self) -> None:
        """Mark the namespaces with changed labels."""
        generation, read = self._dependencies.published.namespace_labels()
        if self._labels is not None and generation == self._labels_at:
            return
        before, self._labels = self._labels, read()
        self._labels_at = generation
        if before is None:
            return
        changed = {
            name for name, digest in self._labels.items() if before.get(name) != digest
        }
        for scanned in self.resources.values():
            if scanned.reads_labels and scanned.resource.namespaced:
                scanned.mark(changed, self._clock_s())

    def _follow_data(self) -> None:
        """Mark the resources whose rules read other data, if this data changed."""
        data = self._dependencies.published.data_generations()
        now_s = self._clock_s()
        if data == self._data or now_s - self._data_s < _DATA_PAUSE_S:
            return
        if self._data is not None:
            for resource in self.resources.values():
                if resource.reads_data:
                    resource.mark([EVERYWHERE], now_s)
        self._data, self._data_s = data, now_s

    def _follow_time(self) -> None:
        now_s = self._clock_s()
        if now_s - self._full_s < self._dependencies.settings.reports_scan_interval_s:
            return
        self._full_s = now_s
        for resource in self.resources.values():
            resource.mark([EVERYWHERE], now_s)

    def _scan_due(self) -> None:
        """List and feed the due objects; continue with other kinds after a failure.

        An aggregated API server may be down for days.
        """
        for key, scanned in list(self.resources.items()):
            if not scanned.is_to_list(self._clock_s()):
                continue
            try:
                for namespace, only in scanned.lists():
                    self._list(scanned, namespace, only)
                    scanned.listed(namespace)
            except DependencyError as error:
                _log.warning(error.message)
                scanned.failed(self._clock_s())
                if not isinstance(error, KubeRefused | KubeNotFound):
                    self._list_problems[key] = error.message
                # The health of the pool already shows these errors of the watch.
            else:
                self._list_problems.pop(key, None)

    def _list(self, scanned: Scanned, namespace: str, only: Keys | None) -> None:
        """List and feed the objects of a kind. Raises: DependencyError."""

        def only_for(report: Key) -> Keys | None:
            return only if self._is_whole(report) else None

        scope = WatchScope(resource=scanned.resource, namespace=namespace)
        for page in list_pages(self._dependencies.client, scope):
            for raw in page.items:
                try:
                    scanned.watch.evaluate(raw, scanned.started_s, only_for)
                except UNDECODABLE as error:
                    # As in the watch, the other objects are still evaluated.
                    _log.warning(
                        "%s: skipped an object: %s", scanned.resource.name, error
                    )

    def _hold_scans(self) -> None:
        """Record the duration of a scan once all objects have been evaluated."""
        # Delayed objects have changed, and do not belong to a scan.
        if self._feed.undelayed:
            return
        for scanned in self.resources.values():
            if scanned.started_s and not scanned.due and scanned.watch.informer.synced:
                took_s = self._clock_s() - scanned.started_s
                scanned.started_s = 0.0
                labels = (scanned.resource.plural,)
                if self._has_gauges:
                    self._dependencies.metrics.hold(REPORTS_SCAN, labels, took_s)
                _log.info("scanned %s in %.1f s", scanned.resource.name, took_s)
