"""Record what a request triggers by GeneratingPolicies, and allow it.

Room: webhook. Takes: a Review and its GeneratingPlan. Gives: the answer's bytes.
Next: review (its exits). May touch: the triggers.
Source: docs/behaviour/cel 12d; docs/behaviour/controllers 2.8; Kyverno
pkg/webhooks/resource/gpol/handler.go.
"""

from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.cel_policies.generating_plan import GeneratingPlan
from kyverno_mp.program.request import Request
from kyverno_mp.webhook.ports import Plans
from kyverno_mp.webhook.review.review import ABANDONED, Failure, Review


class CelGeneratingHandler:
    """The handler of ``/gpol`` and of ``/ngpol``."""

    __slots__ = ("plan",)

    def __init__(self, plans: Plans[GeneratingPlan]) -> None:
        self.plan = plans.plan

    def takes(self, _request: Request) -> bool:
        """Accept every operation: a deletion may delete what was generated."""
        return True

    def evaluate(
        self, review: Review, plan: GeneratingPlan, _pace: Pace | None
    ) -> bytes:
        """Allow the request; its record is in the journal before the answer."""
        if review.is_abandoned():
            return ABANDONED
        answer = review.allow([], [])
        _record(review, plan)
        return answer

    def passed(self, _review: Review) -> None:
        """Do nothing: the other validating webhook records changes of sources."""

    def evaluate_rest(
        self, review: Review, plan: GeneratingPlan, _failure: Failure, _pace: Pace
    ) -> bytes:
        """Do the same late: only constraints are evaluated."""
        answer = review.allow([], [])
        _record(review, plan)
        return answer


def _record(review: Review, plan: GeneratingPlan) -> None:
    """Record what an allowed request triggers; a failure changes no answer."""
    triggers = review.dependencies.triggers
    if triggers is None or review.request.dry_run:
        return
    if review.request.username == review.dependencies.background_user:
        # What a policy generates would trigger it, and others, again and again.
        return
    try:
        found = plan.triggered()
        if found:
            triggers.triggered(review.request, found)
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)
