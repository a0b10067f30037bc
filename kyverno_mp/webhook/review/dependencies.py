"""Define the dependencies of the review service.

Room: webhook. Takes: what wire creates. Gives: Dependencies. Next: service,
review. May touch: nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from kyverno_mp.admission.decode import TopKind, built_in_kind
from kyverno_mp.admission.denial import AdmissionVerdicts
from kyverno_mp.program.ports import NamespaceObjects
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.ports import (
    AuditSink,
    Filters,
    NamespaceLabels,
    Recording,
    Records,
    Results,
    Roles,
    Triggers,
)
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.pace import LongEvaluations
from kyverno_mp.webhook.review.protection import Protection


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of a service; None: it has no such dependency."""

    records: Records
    monotonic_ns: Callable[[], int]
    timeout_ns: int = 10_000_000_000
    """The deadline of a review whose caller sends none."""
    filters: Filters | None = None
    protection: Protection | None = None
    roles: Roles | None = None
    namespaces: NamespaceLabels | None = None
    live_namespaces: NamespaceObjects | None = None
    """Finds a namespace that ``namespaces`` does not know, in the slow lane."""
    audit_queue: AuditQueue | None = None
    sink: AuditSink | None = None
    triggers: Triggers | None = None
    """None: nothing runs in the background."""
    results: Results | None = None
    """None: nobody writes reports."""
    recording: Recording | None = None
    """None: nothing is recorded."""
    background_user: str = ""
    """The background pool's, whose changes of generated objects are its own."""
    verdicts: AdmissionVerdicts = field(default_factory=AdmissionVerdicts)
    slow_lane: Lane | None = None
    """None: reviews that may do I/O also run inline (tests, the CLI's server)."""
    image_lane: Lane | None = None
    """Where reviews run that may read a registry, so that a dead one delays no others;
    None: in ``slow_lane``."""
    long_lane: Lane | None = None
    """Where reviews continue after their slice of the event loop; None: nowhere."""
    long_evaluations: LongEvaluations = field(default_factory=LongEvaluations)
    """The evaluations in threads, including audits, which share the CPU in turns."""
    top_kind: TopKind = built_in_kind
