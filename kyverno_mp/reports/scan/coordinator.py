"""Decide what is evaluated again: after a change of policies or data, or periodically.

Room: reports. Takes: the plan, a Feed, a Writer. Gives: Scan, whose ``tick`` one thread
calls. Next: reports/start.py. May touch: the API server through kube, the clock.
Source: docs/behaviour/controllers 6.3, 6.4; docs/pools.md 4.

Each policy has a digest of its rules that may match a resource. A change of policies
that leaves it as it is costs nothing; otherwise the objects are listed page by page and
evaluated by this policy, and only reports that differ are written.

    policies, exceptions     the policies that changed; outdated rows in reports
    labels of a namespace    the objects in it, of resources whose rules read labels
    other data               resources whose rules read any
    the period               everything
    one object               its watch (reports/scan/watches.py)
"""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from kyverno_mp.errors import (
    DependencyError,
    KubeNotFound,
    KubeRefused,
    SnapshotUnusable,
)
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.watch import WatchScope, list_pages
from kyverno_mp.limits import REPORTS_ADMISSION_POLICIES_S_MAX, REPORTS_WATCHES_MAX
from kyverno_mp.program.reporting import MUTATE, VALIDATE
from kyverno_mp.reports.entries import MUTATING, Subject
from kyverno_mp.reports.feed import Feed, Keys
from kyverno_mp.reports.keeping import is_outdated
from kyverno_mp.reports.kinds import Kinds
from kyverno_mp.reports.objects import StoredReport
from kyverno_mp.reports.plan import (
    CelSegments,
    Plan,
    ScannedRule,
    plan_of,
)
from kyverno_mp.reports.policies.admission_policies import AdmissionPolicies
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.due import EVERYWHERE, Scanned
from kyverno_mp.reports.scan.watches import KindWatch
from kyverno_mp.reports.stored import StoredReports
from kyverno_mp.reports.writer import Writer
from kyverno_mp.telemetry.families import REPORTS_OBJECTS, REPORTS_SCAN

_log = logging.getLogger(__name__)
_DATA_PAUSE_S: Final = 10.0
"""Data that changes all the time causes no more than a scan in this time."""
_PRUNERS: Final = 6
"""Writes under way, as many as scans have."""
_PRUNED_AT_ONCE: Final = 500
ResourceId = tuple[str, str]


class Scan:
    """All resources; one thread calls ``tick``, others may read ``plan``."""

    def __init__(
        self,
        dependencies: ReportsDependencies,
        feed: Feed,
        writer: Writer,
        stored: StoredReports,
    ) -> None:
        self._dependencies = dependencies
        self._clock_s = dependencies.clock.monotonic_s
        self._feed = feed
        self._writer = writer
        self._stored = stored
        self._kinds = Kinds(dependencies.client, self._clock_s)
        self.admission = AdmissionPolicies(dependencies.client, dependencies.settings)
        self.plan = Plan()
        self.resources: dict[ResourceId, Scanned] = {}
        self.problem = ""
        self._list_problems: dict[ResourceId, str] = {}
        """Why the last list of a kind failed."""
        self.left_out = 0
        """Kinds that are not scanned, because there are too many."""
        self._awaited_s: float | None = None
        """Since when kinds of admission policies are awaited."""
        self._swept: Plan | None = None
        self._unswept: set[Key] = set()
        self._labels_at = 0
        self._labels: Mapping[str, bytes] | None = None
        self._data: tuple[int, ...] | None = None
        self._data_s = float("-inf")
        self._full_s = self._clock_s()

    def tick(self) -> None:
        """Do what is due; what fails is tried again at the next tick.

        Raises: LeaseLost.
        """
        problems = []
        for step in (
            self._follow_policies,
            self._follow_labels,
            self._follow_data,
            self._follow_time,
            self._sweep,
            self._scan_due,
        ):
            try:
                step()
            except (DependencyError, SnapshotUnusable) as error:
                problems.append(error.message)
                _log.warning(error.message)
        self._hold_scans()
        self.problem = "; ".join([*problems, *self._list_problems.values()])

    def stop(self) -> None:
        """End all watches; the feed is closed already."""
        self.admission.stop()
        for one in self.resources.values():
            one.watch.stop()

    def _follow_policies(self) -> None:
        """Take up new policies and kinds. Raises: DependencyError, SnapshotUnusable."""
        segment = self._dependencies.published.policies()
        if segment is None:
            return
        served_changed = self._kinds.refresh()
        self.admission.follow(self._kinds.served)
        if self._is_waiting():
            return
        # After the policies: what the leader published before them is there.
        published = self._dependencies.published
        in_cel = CelSegments(
            published.cel_policies(),
            published.mutating_policies(),
            published.generating_policies(),
            published.image_policies(),
        )
        newest = (segment.generation, *in_cel.generations)
        is_current = newest == self.plan.generations
        if is_current and not served_changed and not self.admission.has_changed:
            return
        # Before the rules: a kind that becomes known meanwhile keeps its rows.
        unknown = self.admission.unknown
        rules = self.admission.rules()
        plan = plan_of(segment, self._types(), rules, unknown, in_cel)
        wanted = {
            (one.group, one.plural): one
            for one in self._kinds.of(plan.selectors, plan.named)
        }
        # First the plan: what is found from now on is written by it.
        self.plan = plan
        for key in [key for key in self.resources if key not in wanted]:
            self._drop(key)
        for key, resource in wanted.items():
            self._take_up(key, resource, plan.of(resource))
        self.left_out = len(wanted) - len(self.resources)

    def _is_waiting(self) -> bool:
        """Return whether the plan waits for admission policies.

        They usually come soon. After a time it is made without them, and rows that may
        be theirs stay.
        """
        now_s = self._clock_s()
        if not self.admission.is_awaited:
            self._awaited_s = None
            return False
        if self._awaited_s is None:
            self._awaited_s = now_s
        return now_s - self._awaited_s < REPORTS_ADMISSION_POLICIES_S_MAX

    def _types(self) -> tuple[str, ...]:
        settings = self._dependencies.settings
        if not settings.reports_scan:
            return ()
        reported = {one.strip() for one in settings.reports_of.split(",")}
        types = {VALIDATE: VALIDATE, MUTATE: MUTATING}
        return tuple(types[one] for one in types if one in reported)

    def _take_up(
        self, key: ResourceId, resource: Resource, rules: list[ScannedRule]
    ) -> None:
        known = self.resources.get(key)
        if known is not None and known.resource.version != resource.version:
            self._drop(key)
            known = None
        if known is not None:
            # Rows of rules that are not in force need no evaluation: _sweep.
            changed = known.take_rules(rules) & self.plan.live
            if changed:
                known.mark([EVERYWHERE], self._clock_s(), changed)
        elif len(self.resources) < REPORTS_WATCHES_MAX:
            client, clock = self._dependencies.client, self._dependencies.clock
            watch = KindWatch(client, resource, self._feed, clock)
            made = self.resources[key] = Scanned(watch, rules)
            made.started_s = self._clock_s()
            watch.start()

    def _drop(self, key: ResourceId) -> None:
        gone = self.resources.pop(key)
        gone.watch.stop()
        self._list_problems.pop(key, None)
        self._dependencies.metrics.hold(REPORTS_OBJECTS, (key[1],), 0.0)

    def _follow_labels(self) -> None:
        """Mark the namespaces whose labels changed."""
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
        for one in self.resources.values():
            if one.reads_labels and one.resource.namespaced:
                one.mark(changed, self._clock_s())

    def _follow_data(self) -> None:
        """Mark the resources whose rules read other data, when that changed."""
        data = self._dependencies.published.data_generations()
        now_s = self._clock_s()
        if data == self._data or now_s - self._data_s < _DATA_PAUSE_S:
            return
        if self._data is not None:
            for one in self.resources.values():
                if one.reads_data:
                    one.mark([EVERYWHERE], now_s)
        self._data, self._data_s = data, now_s

    def _follow_time(self) -> None:
        now_s = self._clock_s()
        if now_s - self._full_s < self._dependencies.settings.reports_scan_interval_s:
            return
        self._full_s = now_s
        for one in self.resources.values():
            one.mark([EVERYWHERE], now_s)

    def _sweep(self) -> None:
        """Remove rows of rules that are gone, once for each plan.

        Reports of which the informers lack our last write are looked at when they have
        it. Raises: DependencyError.
        """
        if not self.plan.generation:
            return
        if not self._stored.synced or not self._writer.stores:
            return
        if self._swept is not self.plan:
            # Before the reports are read: what is written from now on follows the plan.
            unseen, plan = self._stored.unseen(), self.plan
            self._prune(self._stored.items())
            self._swept, self._unswept = plan, unseen
        elif self._unswept:
            seen = {key for key in self._unswept if self._stored.is_known(key)}
            found = [(key, self._stored.get(key)) for key in seen]
            self._prune((key, one) for key, one in found if one is not None)
            self._unswept -= seen

    def _prune(self, reports: Iterable[tuple[Key, StoredReport]]) -> None:
        """Remove outdated rows. Raises: DependencyError, after the other reports."""
        plan = self.plan
        kinds = {
            (one.resource.api_version, one.resource.kind)
            for one in self.resources.values()
        }
        outdated: list[tuple[Subject, bool]] = []
        for (namespace, uid), report in reports:
            is_scanned = (report.api_version, report.kind) in kinds
            if is_outdated(report.fingerprints, plan, is_scanned=is_scanned):
                subject = Subject(
                    api_version=report.api_version,
                    kind=report.kind,
                    namespace=namespace,
                    name=report.name,
                    uid=uid,
                )
                outdated.append((subject, is_scanned))

        def prune(one: tuple[Subject, bool]) -> DependencyError | None:
            subject, is_scanned = one
            try:
                self._writer.prune(subject, plan, is_scanned=is_scanned)
            except DependencyError as error:
                return error
            return None

        failures: list[DependencyError | None] = []
        with ThreadPoolExecutor(_PRUNERS, "prune-reports") as pool:
            # The thread pool would queue all at once.
            for at in range(0, len(outdated), _PRUNED_AT_ONCE):
                failures += pool.map(prune, outdated[at : at + _PRUNED_AT_ONCE])
        for failure in failures:
            if failure is not None:
                raise failure

    def _scan_due(self) -> None:
        """List and feed what is due; a kind that fails stops no other.

        An API server behind the API server may be down for days.
        """
        for key, one in list(self.resources.items()):
            if not one.is_to_list(self._clock_s()):
                continue
            try:
                for namespace, only in one.lists():
                    self._list(one, namespace, only)
                    one.listed(namespace)
            except DependencyError as error:
                _log.warning(error.message)
                one.failed(self._clock_s())
                if not isinstance(error, KubeRefused | KubeNotFound):
                    self._list_problems[key] = error.message
                # The watch names these in the health of the pool.
            else:
                self._list_problems.pop(key, None)

    def _list(self, one: Scanned, namespace: str, only: Keys | None) -> None:
        """List and feed the objects of a kind. Raises: DependencyError."""

        def only_for(report: Key) -> Keys | None:
            # Of a report that is missing or was cut, every row is needed.
            is_whole = self._writer.stores and self._stored.is_whole(report)
            return only if is_whole else None

        scope = WatchScope(resource=one.resource, namespace=namespace)
        for page in list_pages(self._dependencies.client, scope):
            for raw in page.items:
                try:
                    one.watch.evaluate(raw, one.started_s, only_for)
                except msgspec.DecodeError as error:
                    # As its watch does: the other objects are evaluated.
                    _log.warning("%s: skipped an object: %s", one.resource.name, error)

    def _hold_scans(self) -> None:
        """Record how long a scan took, once everything was evaluated."""
        if self._feed.pending:
            return
        for one in self.resources.values():
            if one.started_s and not one.due and one.watch.informer.synced:
                took_s = self._clock_s() - one.started_s
                one.started_s = 0.0
                labels = (one.resource.plural,)
                self._dependencies.metrics.hold(REPORTS_SCAN, labels, took_s)
                _log.info("scanned %s in %.1f s", one.resource.name, took_s)
