"""Evaluate and answer one decoded and planned review, and handle failures.

Room: webhook. Takes: Dependencies, a Route, a Request, the webhook's Handler, a plan.
Gives: the answer's bytes. Next: service, which runs it in the event loop or in a lane.
May touch: the log, the sink; counts.
Source: docs/behaviour/controllers 2.4-2.9.

If evaluation fails, the failurePolicy decides and the answer says so. A request is
never allowed silently.
"""

import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from kyverno_mp.admission.annotations import Annotations, annotations_of
from kyverno_mp.admission.encode import allowed, denied, patched
from kyverno_mp.errors import DeadlinePassed, Error, Preempted, QueueFull
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import INLINE_REST_SLICE_NS, RESULTS_AHEAD_NS_MAX
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, SharedResponses
from kyverno_mp.telemetry.trace import Trace
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.ports import PlanOf, Plans
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.pace import EventLoopPace
from kyverno_mp.webhook.review.traced import decided
from kyverno_mp.webhook.route import RECORDED, Route

_LOG = logging.getLogger(__name__)
REST_NS_MAX: Final = 200_000_000
"""The time for policies without external calls after others failed to finish. They run
on the event loop, so this is one slice."""
ABANDONED: Final = b""
"""The result of a thread after the event loop has answered without it."""
PlanT = TypeVar("PlanT", bound=PlanOf)


class Handler(ABC, Generic[PlanT]):
    """The behaviour of one kind of webhook; a row of handlers.py."""

    __slots__ = ("plan",)

    def __init__(self, plans: Plans[PlanT]) -> None:
        self.plan = plans.plan

    def takes(self, request: Request) -> bool:
        """Return whether the webhook handles such a request."""
        del request  # every operation, unless a kind says otherwise
        return True

    @abstractmethod
    def evaluate(self, review: "Review", plan: PlanT, pace: Pace | None) -> bytes:
        """Run the plan; answer with ``allow`` or ``deny``. Raises: Preempted."""

    def passed(self, review: "Review") -> None:
        """Do the follow-up tasks of an allowed review, before its answer is sent.

        Nothing by default: ``/validate``, which runs last, records changes of sources.
        """

    @abstractmethod
    def evaluate_rest(
        self, review: "Review", plan: PlanT, failure: "Failure", pace: Pace
    ) -> bytes:
        """Answer with the results so far after the evaluation failed to finish.

        A policy whose failure is ignored neither removes another policy's denial nor
        reverts its mutation.
        """


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an evaluation failed, and its effect on the answer."""

    error: Exception
    message: str
    fails: bool
    """Whether a candidate has failurePolicy Fail, on a path that does not ignore
    failures."""

    @property
    def is_late(self) -> bool:
        """Return whether the evaluation failed only for lack of time or room."""
        return isinstance(self.error, DeadlinePassed | QueueFull)


class Review:
    """One review in progress, and its answers: ``allow``, ``deny`` and ``fail``."""

    __slots__ = (
        "_error_code",
        "_handler",
        "_has_failed",
        "_is_abandoned",
        "_route",
        "_started_ns",
        "deadline_ns",
        "dependencies",
        "is_considered",
        "is_let_pass",
        "request",
        "size_bytes",
        "trace",
    )

    def __init__(
        self,
        dependencies: Dependencies,
        handler: Handler[Any],
        route: Route,
        request: Request,
        started_ns: int,
        size_bytes: int,
    ) -> None:
        self.dependencies = dependencies
        self.request = request
        self.size_bytes = size_bytes
        self._handler = handler
        self._route = route
        self._started_ns = started_ns
        self.deadline_ns = 0
        self.is_considered = False
        """Whether no filter excluded the request."""
        self._is_abandoned = False
        """Whether the event loop answers while a thread still runs, or will run, the
        evaluation."""
        self._has_failed = False
        self._error_code = ""
        """Whether failure policies determined the answer, at least in part."""
        self.trace: Trace | None = None
        """None unless the review is traced."""
        self.is_let_pass = False
        """Whether the review was answered and allowed."""

    def select(self, pace: Pace | None = None) -> PlanOf | None:
        """Return the plan; None if no policy can match. Raises: as ``Plans.plan``."""
        route = self._route
        plan: PlanOf | None = self._handler.plan(
            self.request, route.failure_policies, route.policy_key, pace
        )
        return plan

    def evaluate(self, plan: PlanOf | None, pace: Pace | None = None) -> bytes:
        """Run the plan and answer. Raises: Preempted from ``pace``.

        After ``abandon``, the answer is discarded and not counted.
        """
        if self.is_abandoned():
            return ABANDONED
        trace = self.trace
        if trace is not None:
            trace.enter()
        try:
            if plan is None:
                return self.allow()
            return self._handler.evaluate(self, plan, pace)
        except Preempted:
            raise
        except Exception as error:  # noqa: BLE001 - the exit for internal errors
            return self.end(error, plan)
        finally:
            if trace is not None:
                trace.leave("evaluate")

    def end(self, error: Exception, plan: PlanOf | None) -> bytes:
        """Call ``fail``, unless the review was abandoned."""
        if self.is_abandoned():
            _LOG.warning(
                "admission review not evaluated in time: %s", type(error).__name__
            )
            return ABANDONED
        return self.fail(error, plan)

    def is_abandoned(self) -> bool:
        """Return whether the event loop answered instead of the calling thread."""
        return self._is_abandoned

    def abandon(self, error: Error, plan: PlanOf | None) -> bytes:
        """Answer instead of a thread that is late or will never start."""
        self._is_abandoned = True
        return self.fail(error, plan)

    def allow(
        self,
        texts: Sequence[str] = (),
        responses: Sequence[PolicyResponse] = (),
        patch: Sequence[dict[str, Json]] = (),
    ) -> bytes:
        """Allow the request, with warnings and a JSON patch, and count the review."""
        self._record(responses, passed=True)
        if self.is_considered:
            self._handler.passed(self)
            if self.dependencies.recording is not None:
                self._keep(responses, patch, allowed=True)
        uid, told = self.request.uid, self._annotations(responses)
        return patched(uid, patch, texts, told) if patch else allowed(uid, texts, told)

    def deny(
        self,
        text: str,
        responses: Sequence[PolicyResponse] = (),
        texts: Sequence[str] = (),
    ) -> bytes:
        """Deny the request, with warnings, and count the review."""
        self._record(responses, passed=False)
        if self.dependencies.recording is not None and self.is_considered:
            self._keep(responses, (), allowed=False)
        told = self._annotations(responses)
        return denied(self.request.uid, text, texts, told)

    def _annotations(self, responses: Sequence[PolicyResponse]) -> Annotations:
        amount = self.dependencies.audit_annotations
        return annotations_of(responses, amount, self._error_code)

    def fail(self, error: Exception, plan: PlanOf | None) -> bytes:
        """Answer when evaluation was impossible or did not finish.

        Finished results stay; for each other policy, its failurePolicy decides. After
        an internal error, the failure policies of all candidates decide together.
        """
        code, text = self.note(error)
        self._has_failed, self._error_code = True, code
        message = f"kyverno could not evaluate this request ({code}): {text}"
        fails = not self._route.ignores_failures and (plan is None or plan.fails)
        if plan is not None:
            now_ns = self.dependencies.monotonic_ns()
            pace = EventLoopPace(now_ns + INLINE_REST_SLICE_NS)
            failure = Failure(error, message, fails)
            try:
                return self._handler.evaluate_rest(self, plan, failure, pace)
            except Exception as unexpected:  # noqa: BLE001 - the exit for internal errors
                _LOG.error(
                    "admission review evaluated only in part: %s",
                    type(unexpected).__name__,
                )
        return self.deny(message) if fails else self.allow([message])

    def rest_deadline_ns(self) -> int:
        """Return the deadline of ``evaluate_rest``."""
        return self.dependencies.monotonic_ns() + REST_NS_MAX

    def ahead_deadline_ns(self) -> int:
        """Return the deadline of work that could also follow after the answer."""
        return self.dependencies.monotonic_ns() + RESULTS_AHEAD_NS_MAX

    def in_force(self, responses: Sequence[PolicyResponse]) -> Sequence[PolicyResponse]:
        """Relax the denials of policies that are not enforced yet for the subject."""
        return self.dependencies.gradual.in_force(responses, self.request)

    def count_denial(self, policies: Iterable[PolicyIR]) -> None:
        """Count a denial against the budgets of policies; a dry run counts nothing."""
        denials = self.dependencies.denials
        if denials is None or self.request.dry_run:
            return
        try:
            denials.denied(list(policies), self.request)
        except Exception as error:  # noqa: BLE001 - a count must never change an answer
            self.dependencies.records.error("webhook.not_counted")
            _LOG.error("could not count a denial: %s", type(error).__name__)

    def report(self, responses: Sequence[PolicyResponse], *, blocked: bool) -> None:
        """Send the responses known with the answer to the sink, except on dry run."""
        sink = self.dependencies.sink
        if sink is None or self.request.dry_run or not responses:
            return
        if blocked and type(responses) is not SharedResponses:
            # PERF: shared responses are never relaxed.
            responses = [each for each in responses if not each.is_relaxed]
        try:
            sink.answered(self.request, responses, blocked=blocked)
        except Exception as error:  # noqa: BLE001 - an event must never change an answer
            self.dependencies.records.error("webhook.not_told")
            _LOG.error(
                "could not record the events of a review: %s", type(error).__name__
            )

    @property
    def records_triggers(self) -> bool:
        """Whether what the request triggers is recorded; a dry run triggers nothing."""
        return self.dependencies.triggers is not None and not self.request.dry_run

    def record_triggers(self, triggered: Sequence[Triggered]) -> None:
        """Record the triggers of an allowed request; a failure changes no answer."""
        triggers = self.dependencies.triggers
        if triggers is None or not triggered or not self.is_let_pass:
            return
        try:
            triggers.triggered(self.request, triggered)
        except Exception as error:  # noqa: BLE001 - the exit for internal errors
            self.note(error)

    def _keep(
        self,
        responses: Sequence[PolicyResponse],
        patch: Sequence[dict[str, Json]],
        *,
        allowed: bool,
    ) -> None:
        """Record the review; a failure here does not change the answer.

        Reviews of policies that generate or verify images are skipped, because
        ``kyverno-mp replay`` does not evaluate these policies.
        """
        if self._route.webhook not in RECORDED:
            return
        recording = self.dependencies.recording
        assert recording is not None
        try:
            recording.record(
                self.request,
                self._route.path,
                responses,
                patch,
                allowed=allowed,
                failed=self._has_failed,
            )
        except Exception as error:  # noqa: BLE001 - as above
            self.note(error)

    def note(self, error: Exception, policy: str = "") -> tuple[str, str]:
        """Log and count the reason why a request or a policy could not be evaluated.

        Returns: the error code, and the message for the caller.
        """
        fields = self._fields(policy)
        if isinstance(error, Error):
            code, text = error.code, error.message
            fields["code"] = code
            _LOG.warning(
                "could not evaluate admission review: %s",
                code,
                extra={"fields": fields},
            )
        else:
            code, text = "webhook.defect", "internal error, see the log"
            # No exception text, because it can contain a value of the object, e.g. of a
            # Secret. If an error was stored, its frames are in its notes.
            trace = "".join(
                traceback.format_tb(error.__traceback__)
                or getattr(error, "__notes__", ())
            )
            fields.update(code=code, error=type(error).__name__, trace=trace)
            _LOG.error(
                "internal error while evaluating a review", extra={"fields": fields}
            )
        self.dependencies.records.error(code)
        return code, text

    def note_left_out(self, left_out: list[tuple[PolicyIR, Exception]]) -> None:
        """Log and count the reasons why policies could not be evaluated, once."""
        while left_out:
            policy, error = left_out.pop()
            self.note(error, policy.key)

    def _fields(self, policy: str) -> dict[str, str]:
        request = self.request
        fields = {
            "uid": request.uid,
            "kind": request.kind,
            "namespace": request.namespace,
            "name": request.name,
            "operation": request.operation,
            "path": self._route.path,
        }
        return {**fields, "policy": policy} if policy else fields

    def _record(self, responses: Sequence[PolicyResponse], *, passed: bool) -> None:
        dependencies = self.dependencies
        self.is_let_pass = passed
        if self.trace is not None:
            decided(self.trace, responses, self._error_code, allowed=passed)
        dependencies.records.review(
            self.request,
            self._route.webhook,
            responses,
            allowed=passed,
            seconds=(dependencies.monotonic_ns() - self._started_ns) / 1e9,
        )
