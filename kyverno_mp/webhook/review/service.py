"""Answer one review: decode, filter, plan; review.py evaluates, here or in a lane.

Room: webhook. Takes: Route, query, body bytes. Gives: the answer's bytes, or a future
of them if a candidate can do I/O. Next: webhook/http/protocol.
May touch: the slow lane; the cluster data only through webhook/ports.py.
Source: docs/behaviour/controllers 2.2-2.9; docs/architecture.md 3 (effects decide
scheduling).

An InputError at decoding becomes a denial, or an HTTP status if the body is not a
review. Without a snapshot the answer is 503. After any other failure the failurePolicy
decides and the answer says so. A request is never allowed silently.
"""

from typing import Any, Final

from kyverno_mp.admission.decode import decode
from kyverno_mp.admission.refusal import refusal
from kyverno_mp.admission.weigh import about_decoded_bytes
from kyverno_mp.errors import (
    Preempted,
    RequestInvalid,
    SnapshotUnusable,
    without_frames,
)
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import (
    INLINE_CROWDED_NS,
    INLINE_CROWDED_SLICE_NS,
    INLINE_SLICE_NS,
    REQUEST_TIMEOUT_S_MAX,
)
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import UNREAD_LABELS, Request
from kyverno_mp.values.kubernetes.selector import labels_of
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.ports import PlanOf
from kyverno_mp.webhook.review.dependencies import Dependencies, without_effects
from kyverno_mp.webhook.review.handlers import Handlers
from kyverno_mp.webhook.review.job import Job
from kyverno_mp.webhook.review.lanes import LateAnswer
from kyverno_mp.webhook.review.pace import EventLoopPace
from kyverno_mp.webhook.review.protection import REFUSAL
from kyverno_mp.webhook.review.review import Handler, Review
from kyverno_mp.webhook.review.traced import observe, undecoded
from kyverno_mp.webhook.route import Route, timeout_ns

Answer = bytes | LateAnswer

_ALWAYS_ALLOWED: Final = frozenset(
    {
        "AdmissionReport",
        "ClusterAdmissionReport",
        "BackgroundScanReport",
        "ClusterBackgroundScanReport",
        "UpdateRequest",
    }
)
"""KYVERNO: kinds to which no configuration can apply policies (controllers 2.3)."""
_RESERVE_NS_MAX: Final = 500_000_000
"""Time reserved for sending the answer: a tenth of the timeout, at most this."""


class Service:
    """The webhook's only path from bytes to bytes; keeps no state of a request."""

    def __init__(self, dependencies: Dependencies, handlers: Handlers) -> None:
        self._dependencies = dependencies
        self._without_effects = without_effects(dependencies)
        """For reviews that anyone could have sent."""
        self._handlers = handlers
        self._now_ns = dependencies.monotonic_ns
        self._crowded_until_ns = 0
        """Until this time, reviews get a short slice, because a long one arrived."""
        self._asks_for_namespaces = (
            dependencies.slow_lane is not None
            and dependencies.live_namespaces is not None
        )

    def answer(  # noqa: PLR0913 - independent facts of one request
        self,
        route: Route,
        query: bytes,
        body: bytes | bytearray,
        arrived_ns: int = 0,
        weight: int = 0,
        *,
        is_proved: bool = True,
        traceparent: bytes = b"",
    ) -> Answer:
        """Answer a review. Raises: HttpError, and nothing else.

        ``arrived_ns`` is the time at which the caller began to wait, for the deadline;
        0 means now. ``weight`` is ``decoded_bytes(body)``, which takes milliseconds for
        a large body; 0 means unknown. A review that is not ``is_proved`` starts
        nothing (webhook/http/callers.py). ``traceparent``: the caller's header.
        """
        started_ns = self._now_ns()
        dependencies = self._dependencies if is_proved else self._without_effects
        tracer = dependencies.tracer
        try:
            request = decode(body, self._dependencies.top_kind, weight)
        except RequestInvalid as error:
            if tracer is not None:
                undecoded(tracer, traceparent, started_ns, error.code)
            return self._refusal(body, error)
        size_bytes = weight or about_decoded_bytes(body)
        handler = self._handlers[route.webhook]
        review = Review(dependencies, handler, route, request, started_ns, size_bytes)
        if tracer is not None:
            times = arrived_ns or started_ns, started_ns
            review.trace = observe(tracer, traceparent, request, route.webhook, times)
        plan: PlanOf | None = None
        pace = None
        if self._dependencies.long_lane is not None:
            is_crowded = started_ns < self._crowded_until_ns
            slice_ns = INLINE_CROWDED_SLICE_NS if is_crowded else INLINE_SLICE_NS
            pace = EventLoopPace(started_ns + slice_ns)
        try:
            # Before the filters, which can refer to roles (2.1).
            self._enrich(request)
            protection = self._dependencies.protection
            if protection is not None and protection.refuses(request):
                return review.deny(REFUSAL)
            if not self._is_evaluated(handler, request):
                return review.allow()
            review.is_considered = True
            review.deadline_ns = self._deadline_ns(query, arrived_ns or started_ns)
            selected = review.select(pace)
            if selected is None:
                return review.allow()
            if not _knows(request) and self._asks_for(request, selected):
                return self._plan_aside(review, selected)
            plan = selected
        except SnapshotUnusable as error:
            raise self._unusable(error, review) from error
        except Preempted as error:
            without_frames(error)
            self._crowded_until_ns = self._now_ns() + INLINE_CROWDED_NS
            return self._plan_aside(review)
        except Exception as error:  # noqa: BLE001 - the exit for internal errors
            return review.fail(error, plan)
        return self._evaluate(review, plan, pace)

    def _evaluate(
        self, review: Review, plan: PlanOf, pace: EventLoopPace | None
    ) -> Answer:
        """Evaluate on the event loop if the plan needs no I/O and fits into a slice."""
        if review.trace is not None:
            review.trace.step("plan")
        lane = None
        if plan.needs_io:
            lane = self._dependencies.lane_of(plan, review.request)
        if lane is None:
            lane = self._dependencies.long_lane
            if lane is None:
                return review.evaluate(plan)
            try:
                return review.evaluate(plan, pace)
            except Preempted as error:
                # The evaluation starts over; it has reported nothing yet.
                without_frames(error)
                self._crowded_until_ns = self._now_ns() + INLINE_CROWDED_NS
        return Job(self._dependencies, review, plan).evaluate_in(lane)

    def _refusal(self, body: bytes | bytearray, error: RequestInvalid) -> bytes:
        """Return the denial of what cannot be decoded. Raises: HttpError."""
        self._dependencies.records.error(error.code)
        answer = refusal(body, error.code, error.message)
        if answer is None:
            raise HttpError(error.code, error.message) from error
        return answer

    def _unusable(self, error: SnapshotUnusable, review: Review) -> HttpError:
        """Return the response while there are no policies."""
        self._dependencies.records.error(error.code)
        if review.trace is not None:
            review.trace.end(error=error.code)
        return HttpError(error.code, error.message)

    def refused(self, code: str) -> None:
        """Count a request that is not a review."""
        self._dependencies.records.error(code)

    def _plan_aside(self, review: Review, selected: PlanOf | None = None) -> Answer:
        """Plan and evaluate in a lane, if many rules must be linked first.

        Also if the namespace must first be read from the API server, because a review
        can arrive before the leader publishes a new namespace. Without the namespace,
        no rule runs. ``selected``: the plan, if only the namespace is missing.
        """
        dependencies, request = self._dependencies, review.request
        lane = dependencies.lane_of(selected, request) or dependencies.long_lane
        assert lane is not None

        def planned(pace: Pace) -> PlanOf | None:
            plan = selected or review.select(pace)
            if plan is not None and self._asks_for(request, plan):
                self._read_namespace(request, review.deadline_ns)
            return plan

        may_move = selected is None and lane is dependencies.slow_lane
        return Job(dependencies, review).plan_in(lane, planned, may_move=may_move)

    def _asks_for(self, request: Request, plan: PlanOf) -> bool:
        """Return whether a plan depends on a namespace that is not published yet.

        A Namespace that is being created does not exist in the cluster yet.
        """
        return (
            self._asks_for_namespaces
            and not _knows(request)
            and plan.reads_namespace
            and not (request.kind == "Namespace" and request.operation == "CREATE")
        )

    def _read_namespace(self, request: Request, deadline_ns: int) -> None:
        """Read the request's namespace. Raises: DependencyError."""
        live = self._dependencies.live_namespaces
        assert live is not None
        namespace = live.namespace(request.namespace, deadline_ns)
        request.namespace_known, request.labels_known = namespace is not None, True
        if namespace is not None:
            request.namespace_labels = labels_of(metadata_of(namespace).get("labels"))

    def _is_evaluated(self, handler: Handler[Any], request: Request) -> bool:
        if not handler.takes(request):
            return False
        if request.kind in _ALWAYS_ALLOWED:
            return False
        filters = self._dependencies.filters
        return filters is None or not filters.excludes(request)

    def _enrich(self, request: Request) -> None:
        """Add data that the review lacks: the user's roles and the namespace's labels.

        An unknown namespace has no labels here; rules that need them handle this.
        """
        roles, namespaces = self._dependencies.roles, self._dependencies.namespaces
        if roles is not None:
            request.roles, request.cluster_roles = roles.roles_of(
                request.namespace, request.username, request.groups
            )
        if namespaces is not None and request.namespace:
            labels = namespaces.labels(request.namespace)
            request.namespace_known = labels is not None
            request.namespace_labels = dict(labels or ())
            request.labels_known = labels is not UNREAD_LABELS

    def _deadline_ns(self, query: bytes, started_ns: int) -> int:
        allowed_ns = self._dependencies.timeout_ns
        if query:
            most = int(REQUEST_TIMEOUT_S_MAX * 1e9)
            allowed_ns = timeout_ns(query, allowed_ns, most)
        return started_ns + allowed_ns - min(_RESERVE_NS_MAX, allowed_ns // 10)


def _knows(request: Request) -> bool:
    return request.namespace_known and request.labels_known
