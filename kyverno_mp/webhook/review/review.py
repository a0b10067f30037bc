"""Judge one review that was decoded and planned, and answer it; one exit for failures.

Room: webhook. Takes: Parts, a Route, a Request, the Handler of its webhook and a plan.
Gives: the answer's bytes. Next: service, which runs it in the event loop or in a lane.
May touch: the log, the sink; counts.
Source: docs/behaviour/controllers 2.4-2.9.

What fails while judging goes the failurePolicy's way, and the answer says so: never a
silent allow.
"""

import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from kyverno_mp.admission.encode import allowed, denied, patched
from kyverno_mp.errors import DeadlinePassed, Error, Preempted, QueueFull
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import INLINE_SLICE_NS
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.ports import PlanOf, Plans
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.pace import EventLoopPace
from kyverno_mp.webhook.route import Route

_LOG = logging.getLogger(__name__)
REST_NS_MAX: Final = 200_000_000
"""For policies that need nobody, when others came to nothing in their time; in the
event loop, so for a slice of it at a time."""
ABANDONED: Final = b""
"""The answer of a thread to a review that was answered without it."""
PlanT = TypeVar("PlanT", bound=PlanOf)


class Handler(Plans[PlanT], Protocol[PlanT]):
    """What one kind of webhook does with a review; a row of handlers.py."""

    def takes(self, request: Request) -> bool:
        """Tell whether the webhook has anything to do with such a request."""

    def judge(self, review: "Review", plan: PlanT, pace: Pace | None) -> bytes:
        """Run the plan and answer by the exits of the review. Raises: Preempted."""

    def judge_rest(
        self, review: "Review", plan: PlanT, failure: "Failure", pace: Pace
    ) -> bytes:
        """Answer with what was reached when judging came to no end.

        A policy whose failure is ignored neither lifts what another one forbids nor
        undoes what another one changed.
        """


@dataclass(frozen=True, slots=True)
class Failure:
    """Why judging came to no end, and what follows from that for the answer."""

    error: Exception
    message: str
    fails: bool
    """The failurePolicy of a candidate is Fail, and the path is not that of Ignore."""

    @property
    def is_late(self) -> bool:
        """Tell whether time or room was missing, rather than anything being wrong."""
        return isinstance(self.error, DeadlinePassed | QueueFull)


class Review:
    """One review on its way: what each of its exits needs."""

    __slots__ = (
        "_handler",
        "_is_abandoned",
        "_route",
        "_started_ns",
        "deadline_ns",
        "dependencies",
        "is_let_pass",
        "request",
        "size_bytes",
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
        self._is_abandoned = False
        """The event loop answers, while a thread judges it or is still to begin."""
        self.is_let_pass = False
        """It was answered, and allowed."""

    def judge(self, plan: PlanOf | None, pace: Pace | None = None) -> bytes:
        """Run the plan and answer. Raises: Preempted, where ``pace`` does.

        Once it is abandoned nobody reads the answer, and what it says is not counted.
        """
        if self.is_abandoned():
            return ABANDONED
        try:
            if plan is None:
                return self.allow()
            return self._handler.judge(self, plan, pace)
        except Preempted:
            raise
        except Exception as error:  # noqa: BLE001 - the exit for defects
            return self.end(error, plan)

    def end(self, error: Exception, plan: PlanOf | None) -> bytes:
        """Do as ``fail``, where somebody still waits for the answer."""
        if self.is_abandoned():
            _LOG.warning(
                "admission review not evaluated in time: %s", type(error).__name__
            )
            return ABANDONED
        return self.fail(error, plan)

    def is_abandoned(self) -> bool:
        """Tell whether the event loop answered in place of the thread that asks."""
        return self._is_abandoned

    def abandon(self, error: Error, plan: PlanOf | None) -> bytes:
        """Answer in place of a thread that is late or will never come to it."""
        self._is_abandoned = True
        return self.fail(error, plan)

    def allow(
        self,
        texts: Sequence[str] = (),
        responses: Sequence[PolicyResponse] = (),
        patch: Sequence[dict[str, Json]] = (),
    ) -> bytes:
        """Let pass, with warnings and a JSON patch, and count."""
        self._record(responses, passed=True)
        uid = self.request.uid
        return patched(uid, patch, texts) if patch else allowed(uid, texts)

    def deny(self, text: str, responses: Sequence[PolicyResponse] = ()) -> bytes:
        """Refuse, and count."""
        self._record(responses, passed=False)
        return denied(self.request.uid, text)

    def fail(self, error: Exception, plan: PlanOf | None) -> bytes:
        """Answer when judging was not possible, or came to no end.

        What was reached stands; what the others would have said is decided by the
        failurePolicy of each. A defect is decided by all policies together.
        """
        code, text = self.note(error)
        message = f"kyverno could not judge this request ({code}): {text}"
        fails = not self._route.ignores_failures and (plan is None or plan.fails)
        if plan is not None:
            now_ns = self.dependencies.monotonic_ns()
            pace = EventLoopPace(now_ns + INLINE_SLICE_NS)
            failure = Failure(error, message, fails)
            try:
                return self._handler.judge_rest(self, plan, failure, pace)
            except Exception as defect:  # noqa: BLE001 - the exit for defects
                _LOG.error(
                    "admission review evaluated only in part: %s", type(defect).__name__
                )
        return self.deny(message) if fails else self.allow([message])

    def rest_deadline_ns(self) -> int:
        """Return until when ``judge_rest`` may go on."""
        return self.dependencies.monotonic_ns() + REST_NS_MAX

    def tell(self, responses: Sequence[PolicyResponse], *, blocked: bool) -> None:
        """Let the sink note what is known with the answer; nothing on dry run."""
        sink = self.dependencies.sink
        if sink is None or self.request.dry_run or not responses:
            return
        try:
            sink.answered(self.request, responses, blocked=blocked)
        except Exception as error:  # noqa: BLE001 - an event must never change an answer
            self.dependencies.records.error("webhook.not_told")
            _LOG.error(
                "could not record the events of a review: %s", type(error).__name__
            )

    def note(self, error: Exception, policy: str = "") -> tuple[str, str]:
        """Log and count what kept a request or a policy from being judged.

        Gives: its code, and what the caller may read of it.
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
            # No exception text: it may hold a value of the object, e.g. of a Secret.
            trace = "".join(traceback.format_tb(error.__traceback__))
            fields.update(code=code, error=type(error).__name__, trace=trace)
            _LOG.error("defect while evaluating a review", extra={"fields": fields})
        self.dependencies.records.error(code)
        return code, text

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
        dependencies.records.review(
            self.request,
            self._route.webhook,
            responses,
            allowed=passed,
            seconds=(dependencies.monotonic_ns() - self._started_ns) / 1e9,
        )
