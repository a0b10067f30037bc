"""Wire the dependencies of one webhook worker, after its fork.

Room: webhook. Takes: Settings, the evaluator and the role's ports. Gives:
Served. Next: worker. May touch: starts the audit queue thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kyverno_mp.admission.decode import TopKind, built_in_kind
from kyverno_mp.limits import (
    AUDIT_QUEUE_BYTES_MAX,
    DRY_RUN_REVIEW_THREADS,
    IMAGE_REVIEWS_WAITING_MAX,
    JSON_PAYLOAD_THREADS,
    JSON_PAYLOADS_WAITING_MAX,
    LONG_REVIEW_THREADS,
    OTLP_FLUSH_S_MAX,
    SLOW_REVIEWS_WAITING_MAX,
)
from kyverno_mp.policy.ports import BuiltInKinds, ClusterView
from kyverno_mp.program.gradual import Standings, first_step
from kyverno_mp.program.plans.mutation_plan import MutationPlan
from kyverno_mp.program.ports import NamespaceObjects
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry import traces
from kyverno_mp.telemetry.traces import Tracer
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.decisions import on_policy_review
from kyverno_mp.webhook.http.callers import CallerCheck
from kyverno_mp.webhook.http.connections import Connections, Peers
from kyverno_mp.webhook.http.tls import Certificates
from kyverno_mp.webhook.payloads import JsonPayloads, Judge
from kyverno_mp.webhook.policy_review import ReviewOptions
from kyverno_mp.webhook.ports import (
    AuditSink,
    Denials,
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
from kyverno_mp.webhook.review.gradual import Gradual
from kyverno_mp.webhook.review.handlers import CelPlanners, handlers_of
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
    cel: CelPlanners = field(default_factory=dict)
    filters: Filters | None = None
    sink: AuditSink | None = None
    triggers: Triggers | None = None
    unproved_triggers: Triggers | None = None
    results: Results | None = None
    denials: Denials | None = None
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
    payloads: Judge | None = None
    """Judges JSON payloads; None: the worker does not answer them."""
    on_payload: Callable[[str, float], None] = lambda _outcome, _seconds: None
    """Gets the outcome and the seconds of each payload."""
    registries: Callable[[Iterable[str]], tuple[str, ...]] = tuple
    """Returns the shares of a review of images of these registries."""
    standing: Standings = first_step
    """Returns how far the gradual enforcement of a policy has come."""


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


class _Lanes(NamedTuple):
    """The threads of reviews and payloads that can do I/O or take long."""

    slow: Lane
    images: Lane
    dry_runs: Lane
    long: Lane
    payloads: Lane


@dataclass(frozen=True, slots=True)
class _Wired:
    """What one worker runs beside its event loop."""

    role: RoleDependencies
    audit_queues: tuple[AuditQueue, AuditQueue]
    lanes: _Lanes
    connections: Connections

    def start(self) -> None:
        """Start the threads that reviews need."""
        for queue in self.audit_queues:
            queue.start()
        if self.role.recording is not None:
            self.role.recording.start()

    def tick(self) -> None:
        """Report the depths of the queues."""
        queues, lanes, connections = self.audit_queues, self.lanes, self.connections
        arriving, evaluating = connections.arriving, connections.evaluating
        self.role.tick(
            Gauges(
                audit_queue_depth=sum(queue.waiting for queue in queues),
                audit_queue_dropped=sum(queue.dropped for queue in queues),
                io_queue_depth=lanes.slow.running,
                io_queue_dropped=lanes.slow.refused,
                long_queue_depth=lanes.long.running,
                long_queue_dropped=lanes.long.refused,
                image_queue_depth=lanes.images.running + lanes.dry_runs.running,
                image_queue_dropped=lanes.images.refused + lanes.dry_runs.refused,
                connections=len(connections.open),
                connections_ended=connections.ended,
                held_bytes=arriving.total + evaluating.total,
                bytes_freed=arriving.freed + evaluating.freed,
                reviews_bytes=evaluating.total
                + sum(queue.held_bytes for queue in queues),
            )
        )

    def stop(self, left_s: float) -> None:
        """Stop the threads; what is queued has ``left_s`` to end."""
        for lane in self.lanes:
            lane.stop()
        self.role.reviewers.stop()
        if self.role.recording is not None:
            self.role.recording.stop(left_s / 2)
        until_s = time.monotonic() + left_s
        unfinished = 0
        for queue in self.audit_queues:
            if not queue.stop(max(0.0, until_s - time.monotonic())):
                unfinished += queue.unfinished
        left_s = until_s - time.monotonic()
        traces.finish(max(0.0, min(OTLP_FLUSH_S_MAX, left_s)))
        if unfinished:
            _LOG.warning(
                "audit evaluations were not run before the stop",
                extra={"fields": {"count": unfinished}},
            )


def wire(
    settings: Settings, loop: asyncio.AbstractEventLoop, role: RoleDependencies
) -> Served:
    """Return the objects that the worker serves."""
    long_evaluations = LongEvaluations()
    lanes = _lanes(settings, loop, long_evaluations)
    audit_queues = (_audit_queue(settings, role), _audit_queue(settings, role))
    dependencies = _dependencies(settings, role, audit_queues, lanes, long_evaluations)
    connections = Connections(
        loop,
        Service(dependencies, handlers_of(role.evaluate, role.mutate, role.cel)),
        make_app(
            role.is_ready,
            _review_options(settings, role.view),
            role.reviewers,
            _payloads(settings, role, lanes.payloads),
        ),
        body_bytes_max=settings.body_bytes_max,
        keepalive_s=float(settings.webhook_keepalive_s),
        time_s=time.time,
        peers=role.peers,
        callers=role.callers,
    )
    wired = _Wired(role, audit_queues, lanes, connections)
    wired.start()
    return Served(
        connections=connections,
        certificates=role.certificates,
        tick=wired.tick,
        stop=wired.stop,
    )


def _lanes(
    settings: Settings,
    loop: asyncio.AbstractEventLoop,
    long_evaluations: LongEvaluations,
) -> _Lanes:
    def lane(threads: int, waiting_max: int, *, is_shared: bool = False) -> Lane:
        return Lane(
            loop,
            threads,
            waiting_max,
            time.monotonic_ns,
            long_evaluations,
            is_shared=is_shared,
        )

    return _Lanes(
        slow=lane(settings.io_threads, SLOW_REVIEWS_WAITING_MAX),
        images=lane(settings.image_threads, IMAGE_REVIEWS_WAITING_MAX, is_shared=True),
        dry_runs=lane(
            DRY_RUN_REVIEW_THREADS, IMAGE_REVIEWS_WAITING_MAX, is_shared=True
        ),
        long=lane(LONG_REVIEW_THREADS, SLOW_REVIEWS_WAITING_MAX),
        payloads=lane(JSON_PAYLOAD_THREADS, JSON_PAYLOADS_WAITING_MAX),
    )


def _payloads(
    settings: Settings, role: RoleDependencies, lane: Lane
) -> JsonPayloads | None:
    if role.payloads is None:
        return None
    timeout_ns = int(settings.webhook_timeout_s * 1e9)
    return JsonPayloads(
        lane, role.payloads, timeout_ns, role.on_payload, role.records.error
    )


def _audit_queue(settings: Settings, role: RoleDependencies) -> AuditQueue:
    return AuditQueue(
        settings.audit_queue_max,
        on_drop=lambda: role.records.error("webhook.audit_queue_full"),
        on_error=_audit_error_callback(role.records),
        bytes_max=AUDIT_QUEUE_BYTES_MAX // 2,
    )


def _dependencies(
    settings: Settings,
    role: RoleDependencies,
    audit_queues: tuple[AuditQueue, AuditQueue],
    lanes: _Lanes,
    long_evaluations: LongEvaluations,
) -> Dependencies:
    audit_queue, slow_audit_queue = audit_queues
    is_protected = settings.protect_managed_resources
    return Dependencies(
        records=role.records,
        monotonic_ns=time.monotonic_ns,
        timeout_ns=int(settings.webhook_timeout_s * 1e9),
        audit_annotations=settings.audit_annotations,
        filters=role.filters,
        protection=Protection(settings.namespace) if is_protected else None,
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
        slow_lane=lanes.slow,
        image_lane=lanes.images,
        dry_run_lane=lanes.dry_runs,
        long_lane=lanes.long,
        long_evaluations=long_evaluations,
        top_kind=role.top_kind,
        tracer=role.tracer,
        registries=role.registries,
        gradual=Gradual(role.standing),
        denials=role.denials,
    )


def _review_options(settings: Settings, view: ClusterView | None) -> ReviewOptions:
    """Return the inputs of policy reviews; without a cluster, with built-in kinds."""
    return ReviewOptions(
        view=view or ClusterView(kinds=BuiltInKinds()),
        exceptions_enabled=settings.policy_exceptions,
        exception_namespace=settings.exceptions_in,
        exceptions_need_approval=settings.exceptions_need_approval,
        ttl_needs_delete=settings.ttl_label_needs_delete,
        decided=on_policy_review(settings.log_decisions),
    )


def _audit_error_callback(records: Records) -> Callable[[Exception], None]:
    def report(error: Exception) -> None:
        records.error("webhook.audit_failed")
        # Only the type, because an error's text can contain a value of the object.
        _LOG.error("audit evaluation failed: %s", type(error).__name__)

    return report
