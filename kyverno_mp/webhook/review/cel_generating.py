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
from kyverno_mp.webhook.review.review import ABANDONED, Failure, Handler, Review


class CelGeneratingHandler(Handler[GeneratingPlan]):
    """The handler of ``/gpol`` and of ``/ngpol``."""

    __slots__ = ()

    def evaluate(
        self, review: Review, plan: GeneratingPlan, pace: Pace | None
    ) -> bytes:
        """Allow the request; its record is in the journal before the answer.

        Raises: Preempted, before anything is recorded.
        """
        triggered: Sequence[Triggered] = ()
        if review.records_triggers:
            try:
                triggered = plan.triggered(pace)
            except Preempted:
                raise
            except Exception as error:  # noqa: BLE001 - the exit for internal errors
                review.note(error)
                triggered = plan.unchecked()
        if review.is_abandoned():
            return ABANDONED
        answer = review.allow([], [])
        review.record_triggers(triggered)
        return answer

    def evaluate_rest(
        self, review: Review, plan: GeneratingPlan, _failure: Failure, _pace: Pace
    ) -> bytes:
        """Record the triggers without matching; the pool evaluates the match."""
        answer = review.allow([], [])
        if review.records_triggers:
            review.record_triggers(plan.unchecked())
        return answer
