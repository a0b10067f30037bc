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
from kyverno_mp.errors import Error
from kyverno_mp.program.mutation import Mutations
from kyverno_mp.program.mutation_plan import MutationPlan
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.webhook.parts import Parts
from kyverno_mp.webhook.ports import Plan
from kyverno_mp.webhook.route import Route

_LOG = logging.getLogger(__name__)
AnyPlan: TypeAlias = Plan | MutationPlan
_AUDIT_TIMEOUT_NS: Final = 30_000_000_000
_PURE_NS_MAX: Final = 200_000_000
"""For policies that need nobody, when others came to nothing in their time."""
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

    def judge(self, plan: AnyPlan | None) -> bytes:
        """Run the plan and answer; never raises, so that a thread may run it.

        Once it was given up nobody hears the answer, and what it says is not counted.
        """
        if self._is_unheard():
            return _UNHEARD
        try:
            if plan is None:
                return self.allow()
            if isinstance(plan, MutationPlan):
                done = plan.run(self.deadline_ns)
                return _UNHEARD if self._is_unheard() else self._mutated(done)
            return self._judge(plan)
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

    def _judge(self, plan: Plan) -> bytes:
        enforced = plan.enforce(self.deadline_ns)
        verdict = self._parts.verdicts.of(enforced)
        if self._is_unheard():
            if self._is_let_pass:
                # It is in the cluster now, with whatever it violates.
                self._audit_aside(plan, enforced)
            return _UNHEARD
        if verdict.refused:
            self._tell(enforced, blocked=True)
            return self.deny(denial(self._request, verdict.refused), enforced)
        texts: Sequence[str] = ()
        judged = enforced
        if plan.warns:
            warned, texts = self._warned(plan)
            judged = [*enforced, *warned]
        if verdict.telling:
            texts = [*warnings(verdict.telling), *texts]
        if plan.audits or any(r.failed() or r.errored() for r in verdict.telling):
            self._audit_aside(plan, enforced)
        else:
            # PERF: another thread for this would cost 60 us.
            self._tell_allowed(verdict)
        return self.allow(texts, judged)

    def _warned(self, plan: Plan) -> tuple[Sequence[PolicyResponse], Sequence[str]]:
        """Return what auditing policies warn of; what they cannot say refuses nothing.

        The enforcing ones have let it pass, and the audit comes to them once more.
        """
        try:
            found = plan.warn(self.deadline_ns)
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
            audited = plan.audit(deadline_ns) if plan.audits else ()
            sink.deliver(
                request,
                enforced,
                audited,
                lambda response: plan.in_words(response, deadline_ns),
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
        """Answer as the failurePolicy says when judging was not possible."""
        code, text = self._note(error)
        message = f"kyverno could not judge this request ({code}): {text}"
        if self._route.ignores_failures or (plan is not None and not plan.fails):
            if isinstance(plan, MutationPlan):
                return self._mutate_rest(plan, message)
            refused = self._refused_by_others(plan)
            return self.deny(refused) if refused else self.allow([message])
        return self.deny(message)

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
        deadline_ns = self._parts.monotonic_ns() + _PURE_NS_MAX
        try:
            return self._mutated(plan.run_rest(deadline_ns), message)
        except Exception as error:  # noqa: BLE001 - the exit for defects (style 2.6)
            _LOG.error("review not judged in part: %s", type(error).__name__)
            return self.allow([message])

    def _refused_by_others(self, plan: Plan | None) -> str:
        """Return the refusal by policies that ask nobody outside, "" without one.

        A policy whose failure is ignored does not lift what another one forbids.
        """
        if plan is None or not plan.needs_io:
            return ""
        deadline_ns = self._parts.monotonic_ns() + _PURE_NS_MAX
        try:
            found = self._parts.verdicts.of(plan.enforce_pure(deadline_ns))
            return denial(self._request, found.refused) if found.refused else ""
        except Exception as error:  # noqa: BLE001 - the exit for defects (style 2.6)
            _LOG.error("review not judged in part: %s", type(error).__name__)
            return ""

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
