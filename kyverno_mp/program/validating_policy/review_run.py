"""Evaluate the policies in CEL of one review in turn: what all kinds share.

Room: program. Takes: an Engine, a Request, linked policies. Gives: ReviewRun, with what
the policies share and those that could not be evaluated. Next: plan.py,
program/cel_policies/plan.py, program/image_policies/plan.py.
May touch: the cluster only through the ports of CEL.
Source: docs/behaviour/cel 6; docs/decisions.md (budgets everywhere).

A policy that cannot be evaluated for a reason other than its expressions affects no
other policy; only the end of the review's time ends the run.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from kyverno_mp.errors import (
    DeadlinePassed,
    Error,
    ExpressionFailed,
    Preempted,
    without_frames,
)
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import cut, shortened
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import MatchingCost
from kyverno_mp.program.validating_policy.evaluate import PASSED, SKIPPED
from kyverno_mp.program.validating_policy.planner import is_namespace
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.values.jsonvalue import Json

T = TypeVar("T")
LeftOut = list[tuple[PolicyIR, Exception]]
"""Policies that could not be evaluated for a reason other than their expressions, and
policies with a failed exception."""
_POLICIES_BETWEEN_CLOCK_CHECKS: Final = 16
"""Each policy has a separate budget, and a small policy never checks the clock."""


class _Linked(Protocol):
    """A linked policy; ``ir`` is a record with a field ``policy``."""

    matching: MatchingCost

    @property
    def ir(self) -> Any: ...


class ReviewRun:
    """The evaluation of the policies of one review, one after another."""

    __slots__ = ("_engine", "_failure", "_faults", "_left_out", "context", "facts")

    def __init__(
        self,
        engine: Engine,
        request: Request,
        deadline_ns: int,
        pace: Pace | None,
        left_out: LeftOut,
        *,
        reads_namespace: bool,
    ) -> None:
        """``left_out`` receives the policies that could not be evaluated."""
        self._engine = engine
        self._left_out = left_out
        self._failure: Exception | None = None
        self._faults: list[ExpressionFailed] = []
        self.context = engine.open(request, deadline_ns, pace)
        namespace = None
        if reads_namespace:
            namespace = _namespace_object(engine, request, deadline_ns)
        self.facts = Facts(
            request,
            self.context.runtime,
            engine.cluster_data.cel,
            namespace,
            is_review=True,
            faults=self._faults,
        )

    def attempt(
        self,
        turn: int,
        linked: _Linked,
        evaluate: Callable[..., T],
        *arguments: Any,
    ) -> T | None:
        """Return what ``evaluate`` returns for a policy, None if it fails.

        ``turn`` counts from 1. Raises: Preempted; DeadlinePassed at the end of the
        review's time.
        """
        runtime, policy = self.facts.runtime, linked.ir.policy
        runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
        evaluated: T | None = None
        try:
            if not linked.matching.is_free:
                runtime.charge(linked.matching.steps(self.facts.request))
            if not turn % _POLICIES_BETWEEN_CLOCK_CHECKS:
                runtime.check_clock()
            evaluated = evaluate(*arguments)
        except Preempted:
            raise
        except Exception as error:
            if isinstance(error, DeadlinePassed) and self._is_over():
                raise
            self._failure = without_frames(error)
            self._left_out.append((policy, self._failure))
        if self._faults:
            self._left_out += [(policy, fault) for fault in self._faults]
            self._faults.clear()
        return evaluated

    def failure(self, rule_type: str, prefix: str) -> RuleResult:
        """Return the result of the policy whose last attempt failed."""
        message = "internal error, see the log"
        if isinstance(self._failure, Error):
            message = f"{self._failure.message} ({self._failure.code})"
        shortened_message = cut(f"{prefix}: {message}")
        return RuleResult("evaluation", rule_type, result.ERROR, shortened_message)

    def _is_over(self) -> bool:
        end_ns = self.facts.runtime.review_deadline_ns
        return not end_ns or self._engine.now_ns() >= end_ns


def _namespace_object(engine: Engine, request: Request, deadline_ns: int) -> Json:
    """Return ``namespaceObject``; None for a cluster-scoped object.

    A Namespace that is being created does not exist in the cluster yet.
    """
    objects = engine.cluster_data.cel.namespaces
    if not request.namespace or objects is None:
        return None
    if is_namespace(request) and request.operation == "CREATE":
        return None
    namespace = objects.namespace(request.namespace, deadline_ns)
    return None if namespace is None else {"spec": {}, "status": {}, **namespace}


def bound(results: Sequence[RuleResult], characters_left: int) -> int:
    """Shorten messages beyond the review's limit; return their number of characters."""
    count = 0
    for each in results:
        if each is PASSED or each is SKIPPED:
            continue
        messages = (each.message, *each.properties.values())
        count += sum(map(len, messages))
        if count > characters_left:
            each.message = shortened(each.message)
            each.properties = {
                name: shortened(value) for name, value in each.properties.items()
            }
    return count
