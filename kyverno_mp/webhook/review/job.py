"""Carry one review from lane to lane: plan it, then evaluate it.

Room: webhook. Takes: the service's Dependencies, a Review, what plans it. Gives: Job,
and the answer as a future. Next: webhook/review/service.
May touch: the lanes; the event loop.
Source: docs/images.md (registries): a slow registry delays no other reviews.

If planning takes long, a thread plans. Only the plan tells whether the review reads
registries, and then that thread must not wait for one.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import Error
from kyverno_mp.expr.scope import Pace
from kyverno_mp.queues.turns import Shares
from kyverno_mp.telemetry.families import OVERFLOW
from kyverno_mp.values.kubernetes.image import registries_of
from kyverno_mp.webhook.audit.records import space_of
from kyverno_mp.webhook.ports import PlanOf
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.lanes import Lane, LateAnswer
from kyverno_mp.webhook.review.review import Review

MOVED: Final = b"moved"
"""What the work returns instead of an answer if the rest runs in another lane."""


class Job:
    """A review that a thread evaluates; the event loop answers if that takes long."""

    __slots__ = ("_dependencies", "_plan", "_review")

    def __init__(
        self, dependencies: Dependencies, review: Review, plan: PlanOf | None = None
    ) -> None:
        """``dependencies``: the service's; ``plan``: None if it is not known yet."""
        self._dependencies = dependencies
        self._review = review
        self._plan = plan

    def evaluate_in(self, lane: Lane) -> LateAnswer:
        """Evaluate the plan in a lane."""
        return self._run(lane, self._evaluate, self._shares(lane))

    def plan_in(
        self, lane: Lane, planned: Callable[[Pace], PlanOf | None], *, may_move: bool
    ) -> LateAnswer:
        """Plan in a lane with ``planned``, and evaluate there.

        ``may_move``: the rest runs in the lane of images if the plan reads registries.
        SAFETY: otherwise, an expensive policy in one namespace would let the reviews of
        its images wait for registries among those that read none.
        """

        def work(pace: Pace) -> bytes:
            trace = self._review.trace
            if trace is not None:
                trace.enter()
            try:
                self._plan = planned(pace)
            except Exception as error:  # noqa: BLE001 - the exit for internal errors
                return self._review.end(error, None)
            finally:
                if trace is not None:
                    trace.leave("plan")
            if may_move and self._lane() is not lane:
                return MOVED
            return self._evaluate(pace)

        first = self._run(lane, work, self._shares(lane))
        images = self._dependencies.image_lane
        if images is None or not may_move:
            return first
        shares = self._shares(images)
        return in_two_lanes(first, lambda: self._run(images, self._evaluate, shares))

    def _lane(self) -> Lane | None:
        return self._dependencies.lane_of(self._plan, self._review.request)

    def _run(
        self, lane: Lane, work: Callable[[Pace], bytes], shares: Shares
    ) -> LateAnswer:
        return lane.run(work, self._review.deadline_ns, self._abandon, shares)

    def _evaluate(self, pace: Pace) -> bytes:
        return self._review.evaluate(self._plan, pace)

    def _abandon(self, error: Error) -> bytes:
        return self._review.abandon(error, self._plan)

    def _shares(self, lane: Lane) -> Shares:
        """Return the namespace and the registries for which the review may wait."""
        service, review = self._dependencies, self._review
        if lane not in (service.image_lane, service.dry_run_lane):
            return ()
        request = review.request
        hosts = tuple(registries_of(request.object or request.old_object))
        if lane is service.image_lane:
            hosts = service.registries(hosts)
        # SAFETY: otherwise, reviews of invented namespaces would get many shares, and
        # anyone could use up the share of a namespace.
        is_believed = review.dependencies is service
        namespace = space_of(request) if is_believed else OVERFLOW
        return (f"namespace {namespace}", *hosts)


def in_two_lanes(first: LateAnswer, rest: Callable[[], LateAnswer]) -> LateAnswer:
    """Return the answer of ``first``, or of ``rest`` if the work has moved."""
    answer = LateAnswer(first.get_loop())

    def has_moved() -> bool:
        # A review past its deadline is answered, although its work can still end.
        return first.done() and first.result() is MOVED

    def pass_on(done: asyncio.Future[bytes]) -> None:
        answer.set_result(done.result())

    def end(_ended: asyncio.Future[None]) -> None:
        answer.ended.set_result(None)

    def go_on(done: asyncio.Future[bytes]) -> None:
        if not has_moved():
            pass_on(done)
            return
        second = rest()
        second.ended.add_done_callback(end)
        second.add_done_callback(pass_on)

    def end_first(ended: asyncio.Future[None]) -> None:
        if not has_moved():
            end(ended)

    first.ended.add_done_callback(end_first)
    first.add_done_callback(go_on)
    return answer
