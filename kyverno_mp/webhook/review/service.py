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
    Error,
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
from kyverno_mp.queues.turns import Shares
from kyverno_mp.telemetry.families import OVERFLOW
from kyverno_mp.values.kubernetes.image import registries_of
from kyverno_mp.values.kubernetes.selector import labels_of
from kyverno_mp.webhook.audit.records import space_of
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.ports import PlanOf
from kyverno_mp.webhook.review.dependencies import Dependencies, without_effects
from kyverno_mp.webhook.review.handlers import Handlers
from kyverno_mp.webhook.review.lanes import Lane, LateAnswer
from kyverno_mp.webhook.review.moves import MOVED, in_two_lanes
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
            found = self._picked(handler, route, request, pace)
            if found is None:
                return review.allow()
            if not _knows(request) and self._asks_for(request, found):
                return self._plan_aside(handler, route, request, review, found)
            plan = found
        except SnapshotUnusable as error:
            raise self._unusable(error, review) from error
        except Preempted as error:
            without_frames(error)
            self._crowded_until_ns = self._now_ns() + INLINE_CROWDED_NS
            return self._plan_aside(handler, route, request, review)
        except Exception as error:  # noqa: BLE001 - the exit for internal errors
            return review.fail(error, plan)
        return self._evaluate(review, plan, pace)

    def _evaluate(
        self, review: Review, plan: PlanOf, pace: EventLoopPace | None
    ) -> Answer:
        """Evaluate on the event loop if the plan needs no I/O and fits into a slice."""
        if review.trace is not None:
            review.trace.step("plan")
        lane = self._lane_of(plan, review.request) if plan.needs_io else None
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
        return lane.run(
            lambda pace: review.evaluate(plan, pace),
            review.deadline_ns,
            lambda error: review.abandon(error, plan),
            self._shares(lane, review),
        )

    def _lane_of(self, plan: PlanOf | None, request: Request) -> Lane | None:
        """Return the lane for plans with I/O; ``plan``: None if it is unknown.

        Reviews that read from registries have a separate lane, so that a dead registry
        blocks only these. So have dry runs: a review of a signed manifest can create an
        object in a dry run, and it occupies its thread until that object is reviewed.
        The review of a dry run creates no other.
        """
        if request.dry_run and self._dependencies.dry_run_lane is not None:
            return self._dependencies.dry_run_lane
        if plan is None:
            return self._dependencies.slow_lane
        images = self._dependencies.image_lane
        if images is None or not (plan.needs_io and plan.reads_registry):
            return self._dependencies.slow_lane
        return images

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

    def _plan_aside(
        self,
        handler: Handler[Any],
        route: Route,
        request: Request,
        review: Review,
        picked: PlanOf | None = None,
    ) -> Answer:
        """Plan and evaluate in the slow lane, if many rules must be linked first.

        It is also used if the namespace must first be read from the API server, because
        a review can arrive before the leader publishes a new namespace. Without the
        namespace, no rule runs.
        """
        lane = self._lane_of(picked, request) or self._dependencies.long_lane
        assert lane is not None
        images = self._dependencies.image_lane
        # SAFETY: otherwise, an expensive policy in one namespace would let the reviews
        # of its images wait for registries among those that read none.
        may_move = picked is None and lane is self._dependencies.slow_lane
        deadline_ns = review.deadline_ns
        plan: PlanOf | None = None

        def evaluate(pace: Pace) -> bytes:
            nonlocal plan
            trace = review.trace
            if trace is not None:
                trace.enter()
            try:
                found = picked or self._picked(handler, route, request, pace)
                if found is not None and self._asks_for(request, found):
                    self._read_namespace(request, deadline_ns)
                plan = found
            except Exception as error:  # noqa: BLE001 - the exit for internal errors
                return review.end(error, None)
            finally:
                if trace is not None:
                    trace.leave("plan")
            if may_move and self._lane_of(plan, request) is not lane:
                return MOVED
            return review.evaluate(plan, pace)

        def late(error: Error) -> bytes:
            return review.abandon(error, plan)

        first = lane.run(evaluate, deadline_ns, late, self._shares(lane, review))
        if images is None or not may_move:
            return first
        shares = self._shares(images, review)
        return in_two_lanes(
            first,
            lambda: images.run(
                lambda pace: review.evaluate(plan, pace), deadline_ns, late, shares
            ),
        )

    def _shares(self, lane: Lane, review: Review) -> Shares:
        """Return the namespace and the registries for which a review may wait."""
        shared = self._dependencies.image_lane, self._dependencies.dry_run_lane
        if lane not in shared:
            return ()
        request = review.request
        hosts = tuple(registries_of(request.object or request.old_object))
        if lane is self._dependencies.image_lane:
            hosts = self._dependencies.registries(hosts)
        # SAFETY: otherwise, reviews of invented namespaces would get many shares, and
        # anyone could use up the share of a namespace.
        is_believed = review.dependencies is self._dependencies
        namespace = space_of(request) if is_believed else OVERFLOW
        return (f"namespace {namespace}", *hosts)

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
        found = live.namespace(request.namespace, deadline_ns)
        request.namespace_known, request.labels_known = found is not None, True
        if found is not None:
            request.namespace_labels = labels_of(metadata_of(found).get("labels"))

    @staticmethod
    def _picked(
        handler: Handler[Any], route: Route, request: Request, pace: Pace | None = None
    ) -> PlanOf | None:
        plan: PlanOf | None = handler.plan(
            request, route.failure_policies, route.policy_key, pace
        )
        return plan

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
