"""Validate: deny by enforcing rules, warn, and audit after the answer.

Room: webhook. Takes: a Review and the Plan of its rules. Gives: the answer's bytes.
Next: review (allow, deny), audit queue. May touch: the sink, the audit queue.
Source: docs/behaviour/controllers 2.4-2.9.
"""

import contextlib
from collections.abc import Sequence
from typing import Final

from kyverno_mp.admission.denial import (
    AdmissionVerdict,
    blocks,
    denial,
    verdict_of,
    warnings,
)
from kyverno_mp.errors import DeadlinePassed, Preempted
from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.changes import change_of
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request, unread_labels
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.webhook.audit.records import space_of
from kyverno_mp.webhook.ports import Plan
from kyverno_mp.webhook.review.review import ABANDONED, Failure, Handler, Review

_AUDIT_TIMEOUT_NS: Final = 30_000_000_000
_UNTRACED: Final = contextlib.nullcontext()


class ValidatingHandler(Handler[Plan]):
    """The ``/validate`` handler."""

    __slots__ = ()

    def evaluate(self, review: Review, plan: Plan, pace: Pace | None) -> bytes:
        """Answer with the enforcing rules, and with the rules that warn."""
        if not _triggers(review, plan):
            return self._evaluate(review, plan, pace)
        # Before the verdict: a preempted evaluation has reported nothing yet.
        triggered = _triggered(review, plan, pace)
        answer = self._evaluate(review, plan, pace)
        if answer is not ABANDONED:
            review.record_triggers(triggered)
        return answer

    def _evaluate(self, review: Review, plan: Plan, pace: Pace | None) -> bytes:
        if _lacks_namespace(review.request, plan):
            name = review.request.namespace
            reason = f'namespace "{name}" not found'
            if not review.request.labels_known:
                reason = unread_labels(name)
            return review.deny(f"failed to create policy context: {reason}")
        enforced = plan.enforce(review.deadline_ns, pace)
        verdict = verdict_of(enforced)
        if verdict.is_gradual:
            enforced = review.in_force(enforced)
            verdict = verdict_of(enforced)
        if review.is_abandoned():
            if review.is_let_pass:
                # The object is now in the cluster, with its violations.
                _audit_later(review, plan, enforced, passes_all_on=True)
            return ABANDONED
        review.note_left_out(plan.left_out)
        if verdict.denied:
            if verdict.is_gradual:
                review.count_denial(one.policy for one in enforced if blocks(one))
            review.report(enforced, blocked=True)
            return review.deny(denial(review.request, verdict.denied), enforced)
        return _let_pass(review, plan, verdict, enforced, pace)

    def passed(self, review: Review) -> None:
        """Record the change of a clone source or of a generated object."""
        dependencies, request = review.dependencies, review.request
        if dependencies.triggers is None or request.dry_run:
            return
        try:
            change = change_of(request, dependencies.background_user)
            if change is not None:
                dependencies.triggers.changed(request, change)
        except Exception as error:  # noqa: BLE001 - the exit for defects
            review.note(error)

    def evaluate_rest(
        self, review: Review, plan: Plan, failure: Failure, pace: Pace
    ) -> bytes:
        """Answer with the verdicts so far; the pool evaluates the triggers."""
        answer = self._evaluate_rest(review, plan, failure, pace)
        if review.is_let_pass and _triggers(review, plan):
            review.record_triggers(_by_match(review, plan))
        return answer

    def _evaluate_rest(
        self, review: Review, plan: Plan, failure: Failure, pace: Pace
    ) -> bytes:
        if failure.fails and not failure.is_late:
            return review.deny(failure.message)
        reached = plan.reached(failure.error, review.rest_deadline_ns(), pace)
        reached = review.in_force(reached)
        verdict = verdict_of(reached)
        if verdict.denied:
            if verdict.is_gradual:
                review.count_denial(one.policy for one in reached if blocks(one))
            return review.deny(denial(review.request, verdict.denied), reached)
        if plan.travels:
            with contextlib.suppress(Preempted):
                _pass_on(review, plan, reached, review.rest_deadline_ns(), pace)
        return review.allow([failure.message, *warnings(verdict.with_results)], reached)


def _triggers(review: Review, plan: Plan) -> bool:
    """Return whether to record triggers; a dry run triggers nothing."""
    return plan.triggers and review.records_triggers


def _triggered(review: Review, plan: Plan, pace: Pace | None) -> Sequence[Triggered]:
    """Return the triggered rules; the pool evaluates those that are undecided here."""
    try:
        return plan.triggered(review.deadline_ns, pace)
    except Preempted:
        raise
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)
        return _by_match(review, plan)


def _by_match(review: Review, plan: Plan) -> Sequence[Triggered]:
    try:
        return plan.triggered_by_match(review.rest_deadline_ns())
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)
        return ()


def _lacks_namespace(request: Request, plan: Plan) -> bool:
    """Return whether policies need labels of a namespace that nobody can read.

    KYVERNO: such a request is denied, regardless of the failurePolicy and of whether
    the rules match. A Namespace itself is not namespaced.
    """
    return (
        not (request.namespace_known and request.labels_known)
        and request.kind != "Namespace"
        and plan.asks_for_labels()
    )


def _let_pass(
    review: Review,
    plan: Plan,
    verdict: AdmissionVerdict,
    enforced: Sequence[PolicyResponse],
    pace: Pace | None,
) -> bytes:
    texts: Sequence[str] = ()
    responses = enforced
    if plan.warns:
        warned, texts = _warned(review, plan, pace)
        responses = [*enforced, *warned]
    if verdict.with_results:
        texts = [*warnings(verdict.with_results), *texts]
    is_ahead = not plan.travels or _pass_on_ahead(review, plan, enforced, pace)
    needs_audit = plan.audits or plan.travels_late or not is_ahead
    if needs_audit or any(r.failed() or r.errored() for r in verdict.with_results):
        _audit_later(review, plan, enforced, passes_all_on=not is_ahead)
    else:
        # PERF: passing this to another thread would cost 60 us.
        _report_passed(review, verdict, enforced)
    return review.allow(texts, responses)


def _pass_on_ahead(
    review: Review, plan: Plan, enforced: Sequence[PolicyResponse], pace: Pace | None
) -> bool:
    """Record results for reports that only this review can produce, before the answer.

    Audited results are included; these rules run again with the audit. Return whether
    the results were recorded. Slow policies follow after the answer, which does not
    wait for their calls. If it takes too long, everything follows after the answer.
    """
    results = review.dependencies.results
    if results is None or not results.takes(review.request):
        return True
    deadline_ns = min(review.deadline_ns, review.ahead_deadline_ns())
    responses = enforced
    try:
        if plan.audits:
            responses = [*enforced, *plan.audit_ahead(deadline_ns, pace)]
            if plan.left_out:
                # The audit runs these rules again, with more time, and reports why they
                # fail.
                plan.left_out.clear()
                return False
        _record_travelling(review, plan, responses, deadline_ns, pace)
    except Preempted:
        raise
    except DeadlinePassed:
        return False
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)
        return False
    return True


def _pass_on(
    review: Review,
    plan: Plan,
    responses: Sequence[PolicyResponse],
    deadline_ns: int,
    pace: Pace | None,
    *,
    slow: bool = False,
) -> None:
    """Record results of an allowed request for reports; a failure changes no answer.

    Raises: Preempted.
    """
    try:
        _record_travelling(review, plan, responses, deadline_ns, pace, slow=slow)
    except Preempted:
        raise
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)


def _record_travelling(
    review: Review,
    plan: Plan,
    responses: Sequence[PolicyResponse],
    deadline_ns: int,
    pace: Pace | None,
    *,
    slow: bool = False,
) -> None:
    """Record results for reports. Raises: Preempted, DeadlinePassed, and others."""
    results, request = review.dependencies.results, review.request
    if results is None or not results.takes(request):
        return
    travelling = plan.travelling(responses, deadline_ns, pace, slow=slow)
    if travelling:
        results.validated(request, travelling)


def _warned(
    review: Review, plan: Plan, pace: Pace | None
) -> tuple[Sequence[PolicyResponse], Sequence[str]]:
    """Return the warnings of auditing policies; a failure here denies nothing.

    The enforcing policies have allowed the request, and the audit runs the auditing
    policies again.
    """
    try:
        warned = plan.warn(review.deadline_ns, pace)
        review.note_left_out(plan.left_out)
    except Preempted:
        raise
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        code, text = review.note(error)
        return (), [f"kyverno could not compute the warnings ({code}): {text}"]
    return warned, warnings(warned)


def _report_passed(
    review: Review, verdict: AdmissionVerdict, enforced: Sequence[PolicyResponse]
) -> None:
    """Send passes and skips to the sink, if it records them."""
    sink = review.dependencies.sink
    if sink is not None and (verdict.with_results or sink.records_successes):
        review.report(enforced, blocked=False)


def _audit_later(
    review: Review,
    plan: Plan,
    enforced: Sequence[PolicyResponse],
    *,
    passes_all_on: bool = False,
) -> None:
    """Queue the work that follows the answer; nothing on dry run.

    ``passes_all_on``: no results for reports were recorded before the answer. Kyverno
    audits policies of both failure policies on each path, so twice per review
    (docs/behaviour/controllers 14.6). Here, each path audits only its own policies.
    """
    dependencies, request = review.dependencies, review.request
    if dependencies.audit_queue is None or dependencies.sink is None or request.dry_run:
        return
    sink, now_ns = dependencies.sink, dependencies.monotonic_ns
    trace = None if review.trace is None else review.trace.follow("audit")

    def audit() -> None:
        started_ns = now_ns()
        deadline_ns = started_ns + _AUDIT_TIMEOUT_NS
        if trace is not None:
            request.observer = trace.policy
        with trace or _UNTRACED, dependencies.long_evaluations.pace() as pace:
            audited = plan.audit(deadline_ns, pace) if plan.audits else ()
            seconds = (now_ns() - started_ns) / 1e9
            review.note_left_out(plan.left_out)
            if plan.travels:
                responses = [*enforced, *audited]
                for slow in (True, False) if passes_all_on else (True,):
                    _pass_on(review, plan, responses, deadline_ns, pace, slow=slow)
            sink.deliver(
                request,
                enforced,
                audited,
                lambda response: plan.with_messages(response, deadline_ns, pace),
                seconds=seconds,
            )

    waiting = dependencies.audit_queue
    if plan.needs_io and dependencies.slow_audit_queue is not None:
        waiting = dependencies.slow_audit_queue
    waiting.put(audit, review.size_bytes, space_of(request))
