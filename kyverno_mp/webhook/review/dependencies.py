"""Define the dependencies of the review service.

Room: webhook. Takes: the objects that wire creates. Gives: Dependencies. Next: service,
review.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kyverno_mp.admission.annotations import OFF
from kyverno_mp.admission.decode import TopKind, built_in_kind
from kyverno_mp.program.ports import NamespaceObjects
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.telemetry.traces import Tracer
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.http_errors import UNPROVED
from kyverno_mp.webhook.ports import (
    AuditSink,
    Denials,
    Filters,
    NamespaceLabels,
    PlanOf,
    Recording,
    Records,
    Results,
    Roles,
    Triggers,
)
from kyverno_mp.webhook.review.gradual import Gradual
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.pace import LongEvaluations
from kyverno_mp.webhook.review.protection import Protection


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of a service; None if a dependency is absent."""

    records: Records
    monotonic_ns: Callable[[], int]
    timeout_ns: int = 10_000_000_000
    """The deadline of a review whose caller sends no timeout."""
    filters: Filters | None = None
    protection: Protection | None = None
    roles: Roles | None = None
    namespaces: NamespaceLabels | None = None
    live_namespaces: NamespaceObjects | None = None
    """Finds a namespace that is missing in ``namespaces``, in the slow lane."""
    audit_queue: AuditQueue | None = None
    slow_audit_queue: AuditQueue | None = None
    """For audits that can do I/O, so that a dead registry or service delays no other
    audits. If None, they use ``audit_queue``."""
    sink: AuditSink | None = None
    triggers: Triggers | None = None
    """None if no background pool runs."""
    unproved_triggers: Triggers | None = None
    """For reviews that anyone could have sent."""
    results: Results | None = None
    """None if no reports pool runs."""
    recording: Recording | None = None
    """None if nothing is recorded."""
    gradual: Gradual = field(default_factory=Gradual)
    """Which policies are not yet enforced for a request's subject."""
    denials: Denials | None = None
    """None if no cluster stores how far a policy has come."""
    audit_annotations: str = OFF
    """How much the API server's audit log says (admission/annotations.py)."""
    background_user: str = ""
    """The user of the background pool, whose own changes of generated objects are
    ignored."""
    slow_lane: Lane | None = None
    """If None, reviews that can do I/O also run inline (tests, the CLI's server)."""
    image_lane: Lane | None = None
    """For reviews that can read from a registry, so that a dead registry delays no
    other reviews. If None, they use ``slow_lane``."""
    dry_run_lane: Lane | None = None
    """For dry runs that would use the two lanes above, so that a review which waits for
    the review of its dry run never blocks it. If None, they use these lanes."""
    long_lane: Lane | None = None
    """For reviews that exceeded their slice of the event loop, None if there is no such
    lane."""
    long_evaluations: LongEvaluations = field(default_factory=LongEvaluations)
    """The evaluations in threads, including audits; they take turns on the CPU."""
    top_kind: TopKind = built_in_kind
    tracer: Tracer | None = None
    """None if nothing is traced."""
    registries: Callable[[Iterable[str]], tuple[str, ...]] = tuple
    """Returns the shares of a review of images of these registries."""

    def lane_of(self, plan: PlanOf | None, request: Request) -> Lane | None:
        """Return the lane for plans with I/O; ``plan``: None if it is unknown.

        Reviews that read from registries have a separate lane, so that a dead registry
        blocks only these. So have dry runs: a review of a signed manifest can create an
        object in a dry run, and it occupies its thread until that object is reviewed.
        The review of a dry run creates no other.
        """
        if request.dry_run and self.dry_run_lane is not None:
            return self.dry_run_lane
        if plan is None or self.image_lane is None:
            return self.slow_lane
        reads_images = plan.needs_io and plan.reads_registry
        return self.image_lane if reads_images else self.slow_lane


def without_effects(dependencies: Dependencies) -> Dependencies:
    """Return the dependencies of reviews that must have no effect but their answer.

    SAFETY: no handler can reach what starts, stores or counts something, except that
    the pool is told which policies to synchronize with the cluster.
    """
    return replace(
        dependencies,
        records=_OnlyErrors(dependencies.records),
        audit_queue=None,
        slow_audit_queue=None,
        sink=None,
        triggers=dependencies.unproved_triggers,
        results=None,
        recording=None,
        denials=None,
        tracer=None,
    )


class _OnlyErrors:
    """Counts such a review under one code, because its labels are not believed."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Count the review."""
        del request, webhook, responses, allowed, seconds
        self._records.error(UNPROVED)

    def audit(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        seconds: float,
    ) -> None:
        """Count nothing."""

    def http(self, method: str, path: str, seconds: float) -> None:
        """Count nothing."""

    def error(self, code: str) -> None:
        """Count an error by its code."""
        self._records.error(code)
