"""Judge one review that was decoded and planned, and answer it; one exit for failures.

Room: webhook. Takes: Parts, a Route, a Request, its plan. Gives: the answer's bytes.
Next: service, which runs it in the event loop or in the slow lane.
May touch: the log, the outbox, the sink; counts.
Source: spec/controllers.md 2.4-2.9.

What fails while judging goes the failurePolicy's way, and the answer says so: never a
silent allow.
"""

import logging
import traceback
from collections.abc import Sequence
from typing import Final, TypeAlias

from kyverno_mp.admission.denial import Verdict, denial, mutation_warnings, warnings
from kyverno_mp.admission.encode import allowed, denied, patched
from kyverno_mp.errors import DeadlinePassed, Error, Preempted, QueueFull
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import INLINE_SLICE_NS
from kyverno_mp.program.mutation import Mutations
from kyverno_mp.program.mutation_plan import MutationPlan
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.webhook.pace import EventLoopPace
from kyverno_mp.webhook.parts import Parts
from kyverno_mp.webhook.ports import Plan
from kyverno_mp.webhook.route import Route

_LOG = logging.getLogger(__name__)
AnyPlan: TypeAlias = Plan | MutationPlan
_AUDIT_TIMEOUT_NS: Final = 30_000_000_000
_REST_NS_MAX: Final = 200_000_000
"""For policies that need nobody, when others came to nothing in their time; in the
event loop, so for a slice of it at a time."""
_UNHEARD: Final = b""
"""The answer of a thread to a review that was answered without it."""


class Review:
    """One review on its way: what each of its exits needs."""

    __slots__ = (
        "_is_given_up",
        "_is_let_pass",
        "_parts",
        "_request",
        "_route",
        "_size_bytes",
        "_started_ns",
        "deadline_ns",
    )

    def __init__(
        self,
        parts: Parts,
        route: Route,
        request: Request,
        started_ns: int,
        size_bytes: int,
    ) -> None:
        self._parts = parts
        self._route = route
        self._request = request
        self._started_ns = started_ns
        self._size_bytes = size_bytes
        self.deadline_ns = 0
        self._is_given_up = False
        """The event loop answers, while a thread judges it or is still to begin."""
        self._is_let_pass = False
        """It was answered, and allowed."""

    def judge(self, plan: AnyPlan | None, pace: Pace | None = None) -> bytes:
        """Run the plan and answer. Raises: Preempted, where ``pace`` does.

        Once it was given up nobody hears the answer, and what it says is not counted.
        """
        if self._is_unheard():
            return _UNHEARD
        try:
            if plan is None:
                return self.allow()
            if isinstance(plan, MutationPlan):
                done = plan.run(self.deadline_ns, pace)
                return _UNHEARD if self._is_unheard() else self._mutated(done)
            return self._judge(plan, pace)
        except Preempted:
            raise
        except Exception as error:  # noqa: BLE001 - the exit for defects (style 2.6)
            return self.end(error, plan)

    def end(self, error: Exception, plan: AnyPlan | None) -> bytes:
        """Do as ``fail``, where somebody hears it."""
        if self._is_unheard():
            _LOG.warning("review not judged, late: %s", type(error).__name__)
            return _UNHEARD
        return self.fail(error, plan)

    def _is_unheard(self) -> bool:
        return self._is_given_up

    def give_up(self, error: Error, plan: AnyPlan | None) -> bytes:
        """Answer in place of a thread that is late or will never come to it."""
        self._is_given_up = True
        return self.fail(error, plan)

    def _mutated(self, done: Mutations, *problems: str) -> bytes:
        """Answer with what was changed, and say what could not be."""
        if done.refusal:
            return self.deny(done.refusal, done.responses)
        self._tell(done.responses, blocked=False)
        self._record(done.responses, passed=True)
        texts = [*problems, *mutation_warnings(done.responses)]
        for policy, error in done.left_out:
            code, text = self._note(error, policy.key)
            texts.append(
                f"kyverno left out what policy {policy.key} changes ({code}): {text}"
            )
        if not done.patch:
            return allowed(self._request.uid, texts)
        return patched(self._request.uid, done.patch, texts)

    def _judge(self, plan: Plan, pace: Pace | None) -> bytes:
        if self._is_of_nowhere(plan):
            name = self._request.namespace
            return self.deny(
                f'failed to create policy context: namespace "{name}" not found'
            )
        enforced = plan.enforce(self.deadline_ns, pace)
        verdict = self._parts.verdicts.of(enforced)
        if self._is_unheard():
            if self._is_let_pass:
                # It is in the cluster now, with whatever it violates.
                self._audit_aside(plan, enforced)
            return _UNHEARD
        self._note_left_out(plan)
        if verdict.refused:
            self._tell(enforced, blocked=True)
            return self.deny(denial(self._request, verdict.refused), enforced)
        texts: Sequence[str] = ()
        judged = enforced
        if plan.warns:
            warned, texts = self._warned(plan, pace)
            judged = [*enforced, *warned]
        if verdict.telling:
            texts = [*warnings(verdict.telling), *texts]
        if plan.audits or any(r.failed() or r.errored() for r in verdict.telling):
            self._audit_aside(plan, enforced)
        else:
            # PERF: another thread for this would cost 60 us.
            self._tell_allowed(verdict)
        return self.allow(texts, judged)

    def _is_of_nowhere(self, plan: Plan) -> bool:
        """Tell whether policies ask for labels of a namespace that is not there.

        KYVERNO: then it is refused, whatever the failurePolicy and whether or not the
        rules match; a Namespace itself lies in none.
        """
        request = self._request
        return (
            not request.namespace_known
            and request.kind != "Namespace"
            and plan.asks_for_labels()
        )

    def _warned(
        self, plan: Plan, pace: Pace | None
    ) -> tuple[Sequence[PolicyResponse], Sequence[str]]:
        """Return what auditing policies warn of; what they cannot say refuses nothing.

        The enforcing ones have let it pass, and the audit comes to them once more.
        """
        try:
            found = plan.warn(self.deadline_ns, pace)
            self._note_left_out(plan)
        except Preempted:
            raise
        except Exception as error:  # noqa: BLE001 - the exit for defects (style 2.6)
            code, text = self._note(error)
            return (), [f"kyverno could not look for warnings ({code}): {text}"]
        return found, warnings(found)

    def _tell(self, responses: Sequence[PolicyResponse], *, blocked: bool) -> None:
        """Let the sink note what is known with the answer; nothing on dry run."""
        sink = self._parts.sink
        if sink is None or self._request.dry_run or not responses:
            return
        try:
            sink.answered(self._request, responses, blocked=blocked)
        except Exception as error:  # noqa: BLE001 - an event must never change an answer
            self._parts.records.error("webhook.not_told")
            _LOG.error("review not told of: %s", type(error).__name__)

    def _tell_allowed(self, verdict: Verdict) -> None:
        """Let the sink note what passed, and skips, where it wants them."""
        sink = self._parts.sink
        if sink is not None and (verdict.telling or sink.tells_passes):
            self._tell(verdict.responses, blocked=False)

    def _audit_aside(self, plan: Plan, enforced: Sequence[PolicyResponse]) -> None:
        """Queue what is done after the answer; nothing on dry run.

        Kyverno audits by policies of both failure policies on each path, so twice a
        review (controllers.md 14.6); here each path audits by its own.
        """
        parts, request = self._parts, self._request
        if parts.outbox is None or parts.sink is None or request.dry_run:
            return
        sink, now_ns = parts.sink, parts.monotonic_ns

        def audit() -> None:
            deadline_ns = now_ns() + _AUDIT_TIMEOUT_NS
            with parts.crowd.pace() as pace:
                audited = plan.audit(deadline_ns, pace) if plan.audits else ()
                self._note_left_out(plan)
                sink.deliver(
                    request,
                    enforced,
                    audited,
                    lambda response: plan.in_words(response, deadline_ns, pace),
                )

        parts.outbox.put(audit, self._size_bytes)

    def allow(
        self,
        texts: Sequence[str] = (),
        responses: Sequence[PolicyResponse] = (),
    ) -> bytes:
        """Let pass, and count."""
        self._record(responses, passed=True)
        return allowed(self._request.uid, texts)

    def deny(self, text: str, responses: Sequence[PolicyResponse] = ()) -> bytes:
        """Refuse, and count."""
        self._record(responses, passed=False)
        return denied(self._request.uid, text)

    def fail(self, error: Exception, plan: AnyPlan | None) -> bytes:
        """Answer when judging was not possible, or came to no end.

        Verdicts that were reached stand; what the others would have said is decided by
        the failurePolicy of each. A defect is decided by all policies together.
        """
        code, text = self._note(error)
        message = f"kyverno could not judge this request ({code}): {text}"
        fails = not self._route.ignores_failures and (plan is None or plan.fails)
        if plan is None or isinstance(plan, MutationPlan):
            if fails:
                return self.deny(message)
            return self._mutate_rest(plan, message) if plan else self.allow([message])
        is_late = isinstance(error, DeadlinePassed | QueueFull)
        if fails and not is_late:
            return self.deny(message)
        return self._end_with_reached(error, plan, message)

    def _end_with_reached(self, error: Exception, plan: Plan, message: str) -> bytes:
        """Answer with the verdicts that were reached.

        A policy whose failure is ignored does not lift what another one forbids.
        """
        now_ns = self._parts.monotonic_ns()
        pace = EventLoopPace(now_ns + INLINE_SLICE_NS)
        try:
            found = plan.reached(error, now_ns + _REST_NS_MAX, pace)
            verdict = self._parts.verdicts.of(found)
        except Exception as defect:  # noqa: BLE001 - the exit for defects (style 2.6)
            _LOG.error("review not judged in part: %s", type(defect).__name__)
            fails = plan.fails and not self._route.ignores_failures
            return self.deny(message) if fails else self.allow([message])
        if verdict.refused:
            return self.deny(denial(self._request, verdict.refused), found)
        return self.allow([message, *warnings(verdict.telling)], found)

    def _note_left_out(self, plan: Plan) -> None:
        """Log and count what kept policies from being judged."""
        while plan.left_out:
            policy, error = plan.left_out.pop()
            self._note(error, policy.key)

    def _note(self, error: Exception, policy: str = "") -> tuple[str, str]:
        """Log and count what kept a request or a policy from being judged.

        Gives: its code, and what the caller may read of it.
        """
        told = self._told(policy)
        if isinstance(error, Error):
            code, text = error.code, error.message
            told["fields"]["code"] = code
            _LOG.warning("review not judged: %s", code, extra=told)
        else:
            code, text = "webhook.defect", "internal error, see the log"
            # No exception text: it may hold a value of the object, e.g. of a Secret.
            trace = "".join(traceback.format_tb(error.__traceback__))
            told["fields"].update(code=code, error=type(error).__name__, trace=trace)
            _LOG.error("defect while judging a review", extra=told)
        self._parts.records.error(code)
        return code, text

    def _mutate_rest(self, plan: MutationPlan, message: str) -> bytes:
        """Answer with what the other policies change.

        A policy whose failure is ignored does not undo what others did.
        """
        now_ns = self._parts.monotonic_ns()
        pace = EventLoopPace(now_ns + INLINE_SLICE_NS)
        try:
            done = plan.run_rest(now_ns + _REST_NS_MAX, pace)
            return self._mutated(done, message)
        except Exception as error:  # noqa: BLE001 - the exit for defects (style 2.6)
            _LOG.error("review not judged in part: %s", type(error).__name__)
            return self.allow([message])

    def _told(self, policy: str) -> dict[str, dict[str, str]]:
        request = self._request
        fields = {
            "uid": request.uid,
            "kind": request.kind,
            "namespace": request.namespace,
            "name": request.name,
            "operation": request.operation,
            "path": self._route.path,
        }
        if policy:
            fields["policy"] = policy
        return {"fields": fields}

    def _record(self, responses: Sequence[PolicyResponse], *, passed: bool) -> None:
        parts = self._parts
        self._is_let_pass = passed
        parts.records.review(
            self._request,
            self._route.webhook,
            responses,
            allowed=passed,
            seconds=(parts.monotonic_ns() - self._started_ns) / 1e9,
        )
