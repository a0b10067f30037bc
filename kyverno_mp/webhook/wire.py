"""Wire the dependencies of one webhook worker, after its fork.

Room: webhook. Takes: Settings, the evaluator and the role's ports. Gives:
Served. Next: worker. May touch: starts the audit queue thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kyverno_mp.admission.decode import TopKind, built_in_kind
from kyverno_mp.limits import (
    AUDIT_QUEUE_BYTES_MAX,
    DRY_RUN_REVIEW_THREADS,
    IMAGE_REVIEWS_WAITING_MAX,
    LONG_REVIEW_THREADS,
    OTLP_FLUSH_S_MAX,
    SLOW_REVIEWS_WAITING_MAX,
)
from kyverno_mp.policy.ports import BuiltInKinds, ClusterView
from kyverno_mp.program.cel_policies.generating_plan import GeneratingPlanner
from kyverno_mp.program.cel_policies.plan import MutatingPlanner
from kyverno_mp.program.image_policies.plan import ImagePlanner
from kyverno_mp.program.plans.mutation_plan import MutationPlan
from kyverno_mp.program.ports import NamespaceObjects
from kyverno_mp.program.validating_policy.plan import CelPlanner
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry import traces
from kyverno_mp.telemetry.traces import Tracer
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.decisions import on_policy_review
from kyverno_mp.webhook.http.callers import CallerCheck
from kyverno_mp.webhook.http.connections import Connections, Peers
from kyverno_mp.webhook.http.tls import Certificates
from kyverno_mp.webhook.policy_review import ReviewOptions
from kyverno_mp.webhook.ports import (
    AuditSink,
    Filters,
    NamespaceLabels,
    Plan,
    Plans,
    Records,
    Results,
    Roles,
    Triggers,
)
from kyverno_mp.webhook.recording.recorder import ReviewRecorder
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.pace import LongEvaluations
from kyverno_mp.webhook.review.protection import Protection
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.review_threads import Reviewers
from kyverno_mp.webhook.worker import Served

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDependencies:
    """The dependencies that the role provides; None for an absent one."""

    evaluate: Plans[Plan]
    is_ready: Callable[[], bool]
    records: Records
    tick: Callable[["Gauges"], None]
    """Called once a second with the worker's gauges."""
    roles: Roles | None = None
    namespaces: NamespaceLabels | None = None
    live_namespaces: NamespaceObjects | None = None
    mutate: Plans[MutationPlan] | None = None
    cel: Callable[[], CelPlanner | None] | None = None
    cel_mutate: Callable[[], MutatingPlanner | None] | None = None
    cel_generate: Callable[[], GeneratingPlanner | None] | None = None
    cel_images: Callable[[], ImagePlanner | None] | None = None
    filters: Filters | None = None
    sink: AuditSink | None = None
    triggers: Triggers | None = None
    unproved_triggers: Triggers | None = None
    results: Results | None = None
    background_user: str = ""
    recording: ReviewRecorder | None = None
    view: ClusterView | None = None
    """The view of the cluster for reviews of policies."""
    reviewers: Reviewers = field(default_factory=Reviewers)
    """The threads of reviews of policies."""
    top_kind: TopKind = built_in_kind
    certificates: Certificates | None = None
    peers: Peers | None = None
    callers: CallerCheck | None = None
    tracer: Tracer | None = None
    registries: Callable[[Iterable[str]], tuple[str, ...]] = tuple
    """Returns the shares of a review of images of these registries."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """Current depths of this worker's queues, for telemetry.page.GAUGES."""

    audit_queue_depth: int
    audit_queue_dropped: int
    io_queue_depth: int
    io_queue_dropped: int
    long_queue_depth: int
    long_queue_dropped: int
    image_queue_depth: int
    image_queue_dropped: int
    connections: int
    connections_ended: int
    """Not in GAUGES; decides when the worker frees memory."""
    held_bytes: int
    bytes_freed: int
    """Not in GAUGES; decides when the worker frees memory."""
    reviews_bytes: int
    """Not in GAUGES: the decoded reviews in evaluation or waiting for an audit."""


def wire(
    settings: Settings, loop: asyncio.AbstractEventLoop, role: RoleDependencies
) -> Served:
    """Return the objects that the worker serves."""
    audit_queue, slow_audit_queue = audit_queues = [
        AuditQueue(
            settings.audit_queue_max,
            on_drop=lambda: role.records.error("webhook.audit_queue_full"),
            on_error=_audit_error_callback(role.records),
            bytes_max=AUDIT_QUEUE_BYTES_MAX // 2,
        )
        for _ in range(2)
    ]
    long_evaluations = LongEvaluations()
    slow_lane = Lane(
        loop,
        settings.io_threads,
        SLOW_REVIEWS_WAITING_MAX,
        time.monotonic_ns,
        long_evaluations,
    )
    image_lane = Lane(
        loop,
        settings.image_threads,
        IMAGE_REVIEWS_WAITING_MAX,
        time.monotonic_ns,
        long_evaluations,
        is_shared=True,
    )
    dry_run_lane = Lane(
        loop,
        DRY_RUN_REVIEW_THREADS,
        IMAGE_REVIEWS_WAITING_MAX,
        time.monotonic_ns,
        long_evaluations,
        is_shared=True,
    )
    long_lane = Lane(
        loop,
        LONG_REVIEW_THREADS,
        SLOW_REVIEWS_WAITING_MAX,
        time.monotonic_ns,
        long_evaluations,
    )
    service = Service(
        Dependencies(
            records=role.records,
            monotonic_ns=time.monotonic_ns,
            timeout_ns=int(settings.webhook_timeout_s * 1e9),
            audit_annotations=settings.audit_annotations,
            filters=role.filters,
            protection=(
                Protection(settings.namespace)
                if settings.protect_managed_resources
                else None
            ),
            roles=role.roles,
            namespaces=role.namespaces,
            live_namespaces=role.live_namespaces,
            audit_queue=audit_queue,
            slow_audit_queue=slow_audit_queue,
            sink=role.sink,
            triggers=role.triggers,
            unproved_triggers=role.unproved_triggers,
            results=role.results,
            background_user=role.background_user,
            recording=role.recording,
            slow_lane=slow_lane,
            image_lane=image_lane,
            dry_run_lane=dry_run_lane,
            long_lane=long_lane,
            long_evaluations=long_evaluations,
            top_kind=role.top_kind,
            tracer=role.tracer,
            registries=role.registries,
        ),
        handlers_of(
            role.evaluate,
            role.mutate,
            role.cel,
            role.cel_mutate,
            role.cel_generate,
            role.cel_images,
        ),
    )
    connections = Connections(
        loop,
        service,
        make_app(role.is_ready, _review_options(settings, role.view), role.reviewers),
        body_bytes_max=settings.body_bytes_max,
        keepalive_s=float(settings.webhook_keepalive_s),
        time_s=time.time,
        peers=role.peers,
        callers=role.callers,
    )

    def tick() -> None:
        role.tick(
            Gauges(
                audit_queue_depth=sum(one.waiting for one in audit_queues),
                audit_queue_dropped=sum(one.dropped for one in audit_queues),
                io_queue_depth=slow_lane.running,
                io_queue_dropped=slow_lane.refused,
                long_queue_depth=long_lane.running,
                long_queue_dropped=long_lane.refused,
                image_queue_depth=image_lane.running + dry_run_lane.running,
                image_queue_dropped=image_lane.refused + dry_run_lane.refused,
                connections=len(connections.open),
                connections_ended=connections.ended,
                held_bytes=connections.arriving.total + connections.evaluating.total,
                bytes_freed=connections.arriving.freed + connections.evaluating.freed,
                reviews_bytes=connections.evaluating.total
                + sum(one.held_bytes for one in audit_queues),
            )
        )

    def stop(left_s: float) -> None:
        slow_lane.stop()
        image_lane.stop()
        dry_run_lane.stop()
        long_lane.stop()
        role.reviewers.stop()
        if role.recording is not None:
            role.recording.stop(left_s / 2)
        until_s = time.monotonic() + left_s
        unfinished = 0
        for one in audit_queues:
            if not one.stop(max(0.0, until_s - time.monotonic())):
                unfinished += one.unfinished
        left_s = until_s - time.monotonic()
        traces.finish(max(0.0, min(OTLP_FLUSH_S_MAX, left_s)))
        if unfinished:
            _LOG.warning(
                "audit evaluations were not run before the stop",
                extra={"fields": {"count": unfinished}},
            )

    for one in audit_queues:
        one.start()
    if role.recording is not None:
        role.recording.start()
    return Served(
        connections=connections, certificates=role.certificates, tick=tick, stop=stop
    )


def _review_options(settings: Settings, view: ClusterView | None) -> ReviewOptions:
    """Return the inputs of policy reviews; without a cluster, with built-in kinds."""
    return ReviewOptions(
        view=view or ClusterView(kinds=BuiltInKinds()),
        exceptions_enabled=settings.policy_exceptions,
        exception_namespace=settings.exceptions_in,
        ttl_needs_delete=settings.ttl_label_needs_delete,
        decided=on_policy_review(settings.log_decisions),
    )


def _audit_error_callback(records: Records) -> Callable[[Exception], None]:
    def report(error: Exception) -> None:
        records.error("webhook.audit_failed")
        # Only the type, because an error's text can contain a value of the object.
        _LOG.error("audit evaluation failed: %s", type(error).__name__)

    return report
