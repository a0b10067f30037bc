"""Record the GeneratingPolicies that a request triggers, and allow it.

Room: webhook. Takes: a Review and its GeneratingPlan. Gives: the answer's bytes.
Next: review (allow). May touch: the triggers.
Source: docs/behaviour/cel 12d; docs/behaviour/controllers 2.8; Kyverno
pkg/webhooks/resource/gpol/handler.go.
"""

from collections.abc import Sequence

from kyverno_mp.errors import Preempted
from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.cel_policies.generating_plan import GeneratingPlan
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.webhook.ports import Plans
from kyverno_mp.webhook.review.review import ABANDONED, Failure, Review


class CelGeneratingHandler:
    """The handler of ``/gpol`` and of ``/ngpol``."""

    __slots__ = ("plan",)

    def __init__(self, plans: Plans[GeneratingPlan]) -> None:
        self.plan = plans.plan

    def takes(self, _request: Request) -> bool:
        """Accept every operation: a deletion can require deleting generated objects."""
        return True

    def evaluate(
        self, review: Review, plan: GeneratingPlan, pace: Pace | None
    ) -> bytes:
        """Allow the request; its record is in the journal before the answer.

        Raises: Preempted, before anything is recorded.
        """
        found: Sequence[Triggered] = ()
        if _is_recorded(review):
            try:
                found = plan.triggered(pace)
            except Preempted:
                raise
            except Exception as error:  # noqa: BLE001 - the exit for internal errors
                review.note(error)
                found = plan.unchecked()
        if review.is_abandoned():
            return ABANDONED
        answer = review.allow([], [])
        _record(review, found)
        return answer

    def passed(self, _review: Review) -> None:
        """Do nothing: the other validating webhook records changes of sources."""

    def evaluate_rest(
        self, review: Review, plan: GeneratingPlan, _failure: Failure, _pace: Pace
    ) -> bytes:
        """Record the triggers without matching; the pool evaluates the match."""
        answer = review.allow([], [])
        if _is_recorded(review):
            _record(review, plan.unchecked())
        return answer


def _is_recorded(review: Review) -> bool:
    return review.dependencies.triggers is not None and not review.request.dry_run


def _record(review: Review, found: Sequence[Triggered]) -> None:
    """Record the triggered policies; a failure does not change the answer."""
    triggers = review.dependencies.triggers
    if triggers is None or not found:
        return
    try:
        triggers.triggered(review.request, found)
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)
