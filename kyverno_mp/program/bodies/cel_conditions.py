"""Evaluate lists of CEL conditions: matchConditions and celPreconditions.

Room: program. Takes: NamedExpressionIRs. Gives: linked conditions, ``gated``.
Next: program/rule_gate.py, program/bodies/cel.py.
Source: docs/behaviour/engine 1.9, 6.4; k8s apiserver,
webhook/matchconditions/matcher.go.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.linking.program import Budget
from kyverno_mp.expr.cel.values import over_budget
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.limits import EXPRESSION_BYTES_MAX
from kyverno_mp.program.context.cel_scope import (
    API_SERVER,
    OUT_OF_BUDGET,
    CelScope,
    Dialect,
    LinkedExpression,
    link,
)
from kyverno_mp.program.request import Request
from kyverno_mp.values.effort import Charge

MATCH_CONDITIONS_COST_MAX: Final = 2_500_000
"""The API server's RuntimeCELCostBudgetMatchConditions (docs/behaviour/cel 12e)."""


def link_conditions(
    conditions: Sequence[NamedExpressionIR], dialect: Dialect = API_SERVER
) -> list[LinkedExpression]:
    """Link the conditions in order."""
    return [link(condition.expression, dialect) for condition in conditions]


def evaluate(
    conditions: Sequence[LinkedExpression], scope: CelScope
) -> tuple[bool, str]:
    """Return (True, "") if all conditions are true, otherwise (False, error).

    A false condition takes precedence over errors; in this case the error is "".
    """
    problems: list[str] = []
    for condition in conditions:
        value, problem = scope.evaluate(condition)
        if problem == OUT_OF_BUDGET:
            return False, problem
        if problem:
            problems.append(problem)
        elif value is False:
            return False, ""
    if not problems:
        return True, ""
    unique = list(dict.fromkeys(problems))
    return False, unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


def gated(
    conditions: Sequence[NamedExpressionIR], matches: Callable[[Request], bool]
) -> Callable[[Request], bool]:
    """Return a match test that also evaluates the policy's matchConditions.

    There is no match if a condition is false, fails or does not compile.

    SAFETY: a condition that exceeds its budget raises BudgetExceeded instead, which is
    a policy error: its cost can be higher here than in the API server, which let the
    request pass.
    """
    if not conditions:
        return matches
    linked = link_conditions(conditions)

    def matches_conditions(request: Request) -> bool:
        if not matches(request):
            return False
        budget = _PolicyBudget(request.charge)
        scope = CelScope(
            request,
            runtime=budget,
            budget=Budget(MATCH_CONDITIONS_COST_MAX),
            variables={},
        )
        holds = _all_hold(linked, scope)
        budget.settle()
        return holds

    return matches_conditions


def _all_hold(conditions: Sequence[LinkedExpression], scope: CelScope) -> bool:
    """Return whether all conditions are true. Raises: BudgetExceeded."""
    return all(_holds(condition, scope) for condition in conditions)


def _holds(condition: LinkedExpression, scope: CelScope) -> bool:
    if condition.program is None:
        return False
    try:
        return scope.run(condition.program) is True
    except ExpressionFailed:
        return False


class _PolicyBudget:
    """Charges the matchConditions to the policy, while they are evaluated.

    Each evaluation has a separate budget. As all evaluations are also charged to the
    policy, neither many rules nor many policies can block the event loop.
    """

    __slots__ = ("_charge", "bytes_left", "steps_left")

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self.bytes_left = EXPRESSION_BYTES_MAX
        self.steps_left = 0
        """A negative number means: steps that are not charged yet."""

    def charge(self, steps: int, /) -> None:
        """Charge steps. Raises: BudgetExceeded, DeadlinePassed, Preempted."""
        self._charge(steps)

    def charge_bytes(self, count: int, /) -> None:
        """Charge bytes. Raises: BudgetExceeded."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise over_budget()

    def settle(self) -> None:
        """Charge the remaining steps. Raises: as ``charge`` does."""
        self._charge(-self.steps_left)
