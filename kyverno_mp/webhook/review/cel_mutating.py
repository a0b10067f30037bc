"""Mutate by MutatingPolicies: answer with one patch, or with the errors of policies.

Room: webhook. Takes: a Review and its MutatingPlan. Gives: the answer's bytes.
Next: review (allow, deny). May touch: the sink, the results for reports, the
triggers.
Source: docs/behaviour/cel 10.1; docs/behaviour/controllers 2.8; Kyverno
pkg/webhooks/resource/mpol/handler.go.
"""

from collections.abc import Iterator, Sequence

from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.cel_policies.plan import CelMutations, MutatingPlan
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.webhook.review.review import ABANDONED, Failure, Handler, Review


class CelMutatingHandler(Handler[MutatingPlan]):
    """The handler of ``/mpol`` and of ``/nmpol``."""

    __slots__ = ()

    def evaluate(self, review: Review, plan: MutatingPlan, pace: Pace | None) -> bytes:
        """Answer with the changes of all policies."""
        # Before the verdict: a preempted evaluation has reported nothing yet.
        triggered = _triggered(review, plan, pace)
        done = plan.run(review.deadline_ns, pace)
        if review.is_abandoned():
            return ABANDONED
        answer = _answer(review, done)
        review.record_triggers(triggered)
        return answer

    def evaluate_rest(
        self, review: Review, plan: MutatingPlan, failure: Failure, pace: Pace
    ) -> bytes:
        """Answer with the changes of the policies that are done."""
        done = plan.run_rest(review.rest_deadline_ns(), pace)
        if done.unfinished:
            return review.deny(failure.message, done.responses)
        answer = _answer(review, done, failure.message)
        if plan.triggers and not review.request.dry_run:
            review.record_triggers(plan.triggered_by_match())
        return answer


def _answer(review: Review, done: CelMutations, *problems: str) -> bytes:
    review.note_left_out(done.left_out)
    refusals = [f"Policy {policy.name}: {text}" for policy, text in done.refusals()]
    responses = list(done.responses)
    if refusals:
        review.report(responses, blocked=True)
        return review.deny(_refusal(review.request, refusals), responses)
    review.report(responses, blocked=False)
    _pass_on(review, done)
    return review.allow([*problems, *_warnings(done)], responses, done.patch)


def _refusal(request: Request, errors: Sequence[str]) -> str:
    """Return upstream's message, in Go's notation of a list."""
    return (
        f"Resource: {request.namespace}/{request.name}, Kind: {request.kind},"
        f" Errors: [{' '.join(errors)}]"
    )


def _warnings(done: CelMutations) -> Iterator[str]:
    """Yield the failures that do not deny; a request is never allowed silently."""
    for policy, text in done.ignored():
        yield f"Policy {policy.name}: {text}"


def _pass_on(review: Review, done: CelMutations) -> None:
    """Record the results for reports; a failure does not change the answer."""
    results = review.dependencies.results
    if results is None or not done.responses:
        return
    try:
        results.mutated(review.request, done.responses)
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)


def _triggered(
    review: Review, plan: MutatingPlan, pace: Pace | None
) -> Sequence[Triggered]:
    """Return the policies that the request triggers; a dry run triggers none.

    Raises: Preempted.
    """
    if not (plan.triggers and review.records_triggers):
        return ()
    return plan.triggered(review.deadline_ns, pace)
