"""Put the parts of one webhook worker together, after its fork.

Room: webhook. Takes: Settings, the evaluator and the ports that a role has. Gives:
Served. Next: worker. May touch: starts the outbox thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kyverno_mp.admission.decode import TopKind, built_in_kind
from kyverno_mp.limits import LONG_REVIEW_THREADS, SLOW_REVIEWS_WAITING_MAX
from kyverno_mp.policy.ports import BuiltInKinds, ClusterView
from kyverno_mp.program.mutation_plan import MutationPlan
from kyverno_mp.program.ports import NamespaceObjects
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.door import Door, Peers
from kyverno_mp.webhook.handlers import handlers_of
from kyverno_mp.webhook.outbox import Outbox
from kyverno_mp.webhook.pace import Crowd
from kyverno_mp.webhook.parts import Parts
from kyverno_mp.webhook.policy_review import ReviewOptions
from kyverno_mp.webhook.ports import (
    AuditSink,
    Filters,
    NamespaceLabels,
    Plan,
    Plans,
    Records,
    Roles,
)
from kyverno_mp.webhook.protection import Protection
from kyverno_mp.webhook.rest import Reviewers, make_app
from kyverno_mp.webhook.service import Service
from kyverno_mp.webhook.slow import SlowLane
from kyverno_mp.webhook.tls import Certificates
from kyverno_mp.webhook.worker import Served

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What the role brings to its worker; None = it has nothing of the kind."""

    evaluate: Plans[Plan]
    is_ready: Callable[[], bool]
    records: Records
    tick: Callable[["Gauges"], None]
    """Called once a second with what this worker has to tell of itself."""
    roles: Roles | None = None
    namespaces: NamespaceLabels | None = None
    live_namespaces: NamespaceObjects | None = None
    mutate: Plans[MutationPlan] | None = None
    filters: Filters | None = None
    sink: AuditSink | None = None
    view: ClusterView | None = None
    """The cluster as reviews of policies see it."""
    top_kind: TopKind = built_in_kind
    certificates: Certificates | None = None
    peers: Peers | None = None


@dataclass(frozen=True, slots=True)
class Gauges:
    """Depths of this worker's queues at one moment, for telemetry.page.FACTS."""

    audit_queue_depth: int
    audit_queue_dropped: int
    io_queue_depth: int
    io_queue_dropped: int
    long_queue_depth: int
    long_queue_dropped: int
    connections: int
    connections_ended: int
    """No fact of the page: what the worker gives back memory by."""
    held_bytes: int
    bytes_freed: int
    """No fact either."""


def wire(settings: Settings, loop: asyncio.AbstractEventLoop, ends: Ends) -> Served:
    """Return what the worker serves."""
    outbox = Outbox(
        settings.audit_queue_max,
        on_drop=lambda: ends.records.error("webhook.outbox_full"),
        on_error=_tell_audit_error(ends.records),
    )
    crowd = Crowd()
    lane = SlowLane(
        loop, settings.io_threads, SLOW_REVIEWS_WAITING_MAX, time.monotonic_ns, crowd
    )
    long_lane = SlowLane(
        loop, LONG_REVIEW_THREADS, SLOW_REVIEWS_WAITING_MAX, time.monotonic_ns, crowd
    )
    service = Service(
        Parts(
            records=ends.records,
            monotonic_ns=time.monotonic_ns,
            timeout_ns=int(settings.webhook_timeout_s * 1e9),
            filters=ends.filters,
            protection=(
                Protection(settings.namespace)
                if settings.protect_managed_resources
                else None
            ),
            roles=ends.roles,
            namespaces=ends.namespaces,
            live_namespaces=ends.live_namespaces,
            outbox=outbox,
            sink=ends.sink,
            slow_lane=lane,
            long_lane=long_lane,
            crowd=crowd,
            top_kind=ends.top_kind,
        ),
        handlers_of(ends.evaluate, ends.mutate),
    )
    reviewers = Reviewers()
    door = Door(
        loop,
        service,
        make_app(ends.is_ready, _review_options(settings, ends.view), reviewers),
        body_bytes_max=settings.body_bytes_max,
        keepalive_s=float(settings.webhook_keepalive_s),
        time_s=time.time,
        peers=ends.peers,
    )

    def tick() -> None:
        ends.tick(
            Gauges(
                audit_queue_depth=outbox.waiting,
                audit_queue_dropped=outbox.dropped,
                io_queue_depth=lane.running,
                io_queue_dropped=lane.refused,
                long_queue_depth=long_lane.running,
                long_queue_dropped=long_lane.refused,
                connections=len(door.connections),
                connections_ended=door.ended,
                held_bytes=door.arriving.total + door.judging.total,
                bytes_freed=door.arriving.freed + door.judging.freed,
            )
        )

    def stop(left_s: float) -> None:
        lane.stop()
        long_lane.stop()
        reviewers.stop()
        if not outbox.stop(left_s):
            _LOG.warning(
                "audit evaluations were left undone",
                extra={"fields": {"count": outbox.waiting}},
            )

    outbox.start()
    return Served(door=door, certificates=ends.certificates, tick=tick, stop=stop)


def _review_options(settings: Settings, view: ClusterView | None) -> ReviewOptions:
    """Return what reviews of policies may know; without a cluster: built-in kinds."""
    return ReviewOptions(
        view=view or ClusterView(kinds=BuiltInKinds()),
        exceptions_enabled=settings.policy_exceptions,
        exception_namespace=settings.exceptions_in,
    )


def _tell_audit_error(records: Records) -> Callable[[Exception], None]:
    def tell(error: Exception) -> None:
        records.error("webhook.audit_failed")
        # The type only: an error's text may hold a value of the object.
        _LOG.error("audit evaluation failed: %s", type(error).__name__)

    return tell
