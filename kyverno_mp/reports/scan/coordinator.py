"""Decide which objects to evaluate again after changes, and periodically.

Room: reports. Takes: the plan, a Feed, a Writer. Gives: Scan, whose ``tick`` one thread
calls. Next: reports/scan/resources.py, reports/start.py. May touch: the API server
through kube, the clock.
Source: docs/behaviour/controllers 6.3, 6.4; docs/pools.md 4.

Each policy has a digest of its rules that may match a resource. A change of policies
that does not affect the digest costs nothing. Otherwise the objects are listed page by
page and evaluated by this policy, and only reports that differ are written.

    policies, exceptions     the policies that changed; outdated rows in reports
    labels of a namespace    the objects in it, of resources whose rules read labels
    other data               resources whose rules read any
    the period               everything
    one object               its watch (reports/scan/watches.py)
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kyverno_mp.errors import DependencyError, LeaseLost
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import REPORTS_ADMISSION_POLICIES_S_MAX, REPORTS_WRITERS
from kyverno_mp.program.reporting import IMAGE_VERIFY
from kyverno_mp.reports.feed import Feed, Keys
from kyverno_mp.reports.keeping import is_outdated
from kyverno_mp.reports.kinds import Kinds
from kyverno_mp.reports.objects import StoredReport
from kyverno_mp.reports.plan import Plan, generations_of, of_reviews, plan_of
from kyverno_mp.reports.policies.admission_policies import AdmissionPolicies
from kyverno_mp.reports.policies.images import image_plan_of, with_images
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.dispatch import NAME
from kyverno_mp.reports.scan.due import Known, changed_keys, known_of
from kyverno_mp.reports.scan.resources import ObjectScan, ResourceId, Wanted
from kyverno_mp.reports.scanned_kinds import IMAGE_SCAN, InCel
from kyverno_mp.reports.stored import StoredReports
from kyverno_mp.reports.writer import Writer
from kyverno_mp.results.entries import Subject
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.telemetry.families import DEFECTS
from kyverno_mp.values.kubernetes.policy_kinds import CEL_SEGMENTS

_log = logging.getLogger(__name__)
_PRUNED_AT_ONCE: Final = 500


class Scan(ObjectScan):
    """The main lane; one thread calls ``tick``, others may read ``plan``."""

    def __init__(
        self,
        dependencies: ReportsDependencies,
        feed: Feed,
        writer: Writer,
        stored: StoredReports,
    ) -> None:
        super().__init__(dependencies, feed)
        self._writer = writer
        self._stored = stored
        self._kinds = Kinds(dependencies.client, self._clock_s, dependencies.served)
        self.admission = AdmissionPolicies(dependencies.client, dependencies.settings)
        self.plan = Plan()
        self._is_due = False
        """Whether policies or kinds have changed since the plan was made."""
        self.imaged = Handover()
        """The resources for the image lane."""
        self._awaited_s: float | None = None
        """The time since which kinds of admission policies are awaited."""
        self._swept: Plan | None = None
        self._unswept: set[Key] = set()
        self._scanned: dict[tuple[str, str], Keys] = {}
        """The rules of both lanes, by the group and kind that they scan."""

    def tick(self) -> None:
        """Run all due steps; a failed step runs again at the next tick.

        Raises: LeaseLost.
        """
        self._run(
            (
                self._follow_policies,
                self._follow_labels,
                self._follow_data,
                self._follow_time,
                self._sweep,
                self._scan_due,
            )
        )

    def stop(self) -> None:
        """Stop all watches; the feed must be closed already."""
        self.admission.stop()
        super().stop()

    def _follow_policies(self) -> None:
        """Apply new policies and kinds. Raises: DependencyError, SnapshotUnusable."""
        segment = self._dependencies.published.policies()
        if segment is None:
            return
        # Kept until the plan is made: the next refresh reports no change again.
        self._is_due |= self._kinds.refresh()
        self.admission.follow(self._kinds.served)
        if self._is_waiting():
            return
        # Read after ``policies``, because the leader publishes these segments first.
        cel_policies = self._dependencies.published.cel_policies
        in_cel = {name: cel_policies(name) for name in CEL_SEGMENTS}
        newest = (segment.generation, generations_of(in_cel))
        known = (self.plan.generation, self.plan.cel_generations)
        self._is_due |= newest != known or self.admission.has_changed
        if not self._is_due:
            return
        # Read before the rules, so that a kind that becomes known meanwhile keeps its
        # rows.
        unknown = self.admission.unknown
        rules = self.admission.rules()
        plan = plan_of(segment, self._reported(), rules, unknown, in_cel)
        images = self._image_plan(segment, in_cel)
        if images is not None:
            plan = with_images(plan, images)
        if not self._dependencies.settings.reports_store:
            plan = of_reviews(plan)
        scanned = self._wanted(plan)
        imaged = self._wanted(plan.images or Plan())
        # The plan is set first, because results are written according to it from now
        # on.
        self.plan = plan
        self._follow(scanned, {})
        self.imaged.put(imaged)
        resources = {
            key: resource for key, resource in scanned.items() if key in self.resources
        }
        self._scanned = _scanned_keys(resources, imaged)
        self._is_due = False

    def _wanted(self, plan: Plan) -> Wanted:
        """Return the resources of a lane, each with the rules that may match."""
        resources = self._kinds.of(plan.selectors, plan.named)
        return {
            (resource.group, resource.plural): (resource, plan.of(resource))
            for resource in resources
        }

    def _is_waiting(self) -> bool:
        """Return whether the plan waits for admission policies.

        They usually arrive soon. After some time, the plan is made without them, and
        rows that may be theirs stay.
        """
        now_s = self._clock_s()
        if not self.admission.is_awaited:
            self._awaited_s = None
            return False
        if self._awaited_s is None:
            self._awaited_s = now_s
        return now_s - self._awaited_s < REPORTS_ADMISSION_POLICIES_S_MAX

    def _in_force(self, keys: Keys) -> Keys:
        return frozenset(key for key in keys if key in self.plan.live)

    def _is_whole(self, report: Key) -> bool:
        # A report that is missing or was cut needs all rows.
        return self._writer.stores and self._stored.is_whole(report)

    def _image_plan(self, segment: PolicySegment, in_cel: InCel) -> Plan | None:
        """Return the plan of the image lane, or None if images are not reported."""
        if IMAGE_VERIFY not in self._reported():
            return None
        return image_plan_of(segment, in_cel[IMAGE_SCAN.kind.segment])

    def _reported(self) -> frozenset[str]:
        """Return the types of rules that are reported by scans."""
        settings = self._dependencies.settings
        if not settings.reports_scan:
            return frozenset()
        return frozenset(word.strip() for word in settings.reports_of.split(","))

    def _sweep(self) -> None:
        """Remove the rows of deleted rules, once for each plan.

        Reports whose last write has not reached the informers are checked later.
        Raises: DependencyError.
        """
        if not self.plan.generation:
            return
        if not self._stored.synced or not self._dependencies.settings.reports_aggregate:
            return
        if self._swept is not self.plan:
            # Read first, because later writes already follow the plan.
            unseen, plan = self._stored.unseen(), self.plan
            self._prune(self._stored.items())
            self._swept, self._unswept = plan, unseen
        elif self._unswept:
            settled = {key for key in self._unswept if self._stored.is_settled(key)}
            reports = [(key, self._stored.get(key)) for key in settled]
            self._prune((key, report) for key, report in reports if report is not None)
            self._unswept -= settled

    def _prune(self, reports: Iterable[tuple[Key, StoredReport]]) -> None:
        """Remove outdated rows. Raises: DependencyError, after trying all reports."""
        plan = self.plan
        outdated: list[tuple[Subject, Keys]] = []
        for (namespace, uid), report in reports:
            # The review that began a report may have used another version than scans.
            group = report.api_version.rpartition("/")[0]
            scanned = self._scanned.get((group, report.kind), frozenset())
            if is_outdated(report.fingerprints, plan, scanned):
                subject = Subject(
                    api_version=report.api_version,
                    kind=report.kind,
                    namespace=namespace,
                    name=report.name,
                    uid=uid,
                )
                outdated.append((subject, scanned))
                if report.left_out:
                    self._complete(group, report.kind, namespace)

        def prune(pruned: tuple[Subject, Keys]) -> DependencyError | None:
            subject, scanned = pruned
            try:
                self._writer.prune(subject, plan, scanned)
            except DependencyError as error:
                return error
            except LeaseLost:
                raise
            except Exception:  # noqa: BLE001 - the other reports are still swept
                # The next scan of the object tries again.
                _log.exception("unexpected error with the report %s", subject.uid)
                self._dependencies.metrics.count(DEFECTS, (NAME,))
            return None

        failures: list[DependencyError | None] = []
        with ThreadPoolExecutor(REPORTS_WRITERS, "prune-reports") as pool:
            # The thread pool would otherwise queue all reports at once.
            for at in range(0, len(outdated), _PRUNED_AT_ONCE):
                failures += pool.map(prune, outdated[at : at + _PRUNED_AT_ONCE])
        for failure in failures:
            if failure is not None:
                raise failure

    def _complete(self, group: str, kind: str, namespace: str) -> None:
        """Evaluate the objects whose cut reports have room for the missing rows now."""
        for scanned in self.resources.values():
            if (scanned.resource.group, scanned.resource.kind) == (group, kind):
                scanned.mark([namespace], self._clock_s())


def _scanned_keys(*lanes: Wanted) -> dict[tuple[str, str], Keys]:
    """Return the rules of the given lanes, by the group and kind that they scan."""
    scanned_keys: dict[tuple[str, str], Keys] = {}
    for resource, rules in (scanned for lane in lanes for scanned in lane.values()):
        kind = resource.group, resource.kind
        scanned_keys[kind] = scanned_keys.get(kind, frozenset()) | {
            rule.key for rule in rules
        }
    return scanned_keys


class Handover:
    """Keeps the newest resources for the image lane; shared by two threads.

    The image lane may wait for registries while a policy is edited and reverted. Rows
    may have been written or removed in between, so the changes of all plans are
    collected, not only the difference between the last plan and the one that the lane
    took.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: Wanted | None = None
        self._known: dict[ResourceId, Known] = {}
        self._changed: dict[ResourceId, Keys] = {}
        """Keys of rules that changed since the last ``take``."""

    def put(self, resources: Wanted) -> None:
        """Replace the resources with those of a newer plan."""
        versions = {key: known_of(rules) for key, (_, rules) in resources.items()}
        with self._lock:
            for key, after in versions.items():
                # If a resource was not scanned for a while, its rows were removed.
                changed = changed_keys(self._known.get(key, {}), after)
                changed |= self._changed.get(key, frozenset())
                # The image lane notices removed rules itself.
                in_force = frozenset().union(*(keys for _, keys in after.values()))
                self._changed[key] = changed & in_force
            for key in self._changed.keys() - versions.keys():
                del self._changed[key]
            self._wanted, self._known = resources, versions

    def take(self) -> tuple[Wanted, Mapping[ResourceId, Keys]] | None:
        """Return the resources and the changed rules, or None if nothing is new."""
        with self._lock:
            if self._wanted is None:
                return None
            handed_over = self._wanted, self._changed
            self._wanted, self._changed = None, {}
        return handed_over
