"""Mutate: answer with the patch of all policies, or with one policy's denial.

Room: webhook. Takes: a Review and the MutationPlan of its rules. Gives: the answer's
bytes. Next: review (allow, deny). May touch: the sink.
Source: docs/behaviour/controllers 2.5, 2.6; docs/behaviour/images 2.6.
"""

from typing import Final

from kyverno_mp.admission.denial import (
    blocks,
    denial,
    image_warnings,
    mutation_warnings,
    verdict_of,
)
from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.mutation import Mutations
from kyverno_mp.program.plans.mutation_plan import MutationPlan
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.webhook.review.review import ABANDONED, Failure, Handler, Review

_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "CONNECT"})


class MutatingHandler(Handler[MutationPlan]):
    """The ``/mutate`` handler."""

    __slots__ = ()

    def takes(self, request: Request) -> bool:
        """Accept requests with an object to change."""
        return request.operation in _OPERATIONS

    def evaluate(self, review: Review, plan: MutationPlan, pace: Pace | None) -> bytes:
        """Answer with the changes of the policies."""
        done = plan.run(review.deadline_ns, pace)
        return ABANDONED if review.is_abandoned() else _answer(review, done)

    def evaluate_rest(
        self, review: Review, plan: MutationPlan, failure: Failure, pace: Pace
    ) -> bytes:
        """Answer with the changes of the other policies."""
        if failure.fails:
            return review.deny(failure.message)
        done = plan.run_rest(review.rest_deadline_ns(), pace)
        return _answer(review, done, failure.message)


def _answer(review: Review, done: Mutations, *problems: str) -> bytes:
    """Answer with the changes, and warn about policies that failed."""
    if done.refusal:
        return review.deny(done.refusal, done.responses)
    verified = done.verified
    if verified:
        verdict = verdict_of(verified)
        if verdict.is_gradual:
            verified = list(review.in_force(verified))
            verdict = verdict_of(verified)
        denied = verdict.denied
        # After the deadline, policies without a result do not block the request.
        if denied:
            if verdict.is_gradual:
                review.count_denial(one.policy for one in verified if blocks(one))
            review.report(verified, blocked=True)
            text = denial(review.request, denied)
            return review.deny(text, [*done.responses, *verified])
    review.report([*done.responses, *verified], blocked=False)
    _pass_on(review, done, verified)
    texts = [
        *problems,
        *mutation_warnings(done.responses),
        *image_warnings(verified),
    ]
    for policy, error in done.left_out:
        code, text = review.note(error, policy.key)
        texts.append(
            f"kyverno skipped the changes of policy {policy.key} ({code}): {text}"
        )
    return review.allow(texts, [*done.responses, *verified], done.patch)


def _pass_on(review: Review, done: Mutations, verified: list[PolicyResponse]) -> None:
    """Record the results for reports; a failure does not change the answer."""
    results = review.dependencies.results
    if results is None:
        return
    try:
        results.mutated(review.request, done.responses)
        results.verified(review.request, verified)
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)
