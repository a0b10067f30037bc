"""Evaluate the exceptions from one policy in CEL.

Room: program. Takes: CelExceptionIR linked once; Facts. Gives: LinkedException,
``link_exceptions``, ``exempting``, ``is_expired``. Next: evaluate.py here and in
program/image_policies, program/cel_policies/scope.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 6; docs/differences.md (PolicyExceptions).
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.validating_policy import CelExceptionIR
from kyverno_mp.limits import EXCEPTION_STEPS_MAX
from kyverno_mp.program.bodies.cel import COST_MAX
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.context.cel_scope import Dialect, LinkedExpression
from kyverno_mp.program.validating_policy.scope import Facts, KindScope

_EXCEPTIONS_COST_MAX: Final = COST_MAX // 2
"""A quarter of the steps of a policy, for all exceptions from it in one review."""
_EXCEPTION_COST_MIN: Final = 10_000
"""Half a millisecond, for some hundred comparisons."""
_EXCEPTION_COST: Final = 50
"""Of each exception besides its conditions: 100,000 of them are evaluated at most."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Met = Callable[[Sequence[LinkedExpression], KindScope], bool]


class LinkedException(NamedTuple):
    """An exception from a policy."""

    ir: CelExceptionIR
    conditions: list[LinkedExpression]


def link_exceptions(
    exceptions: Sequence[CelExceptionIR], dialect: Dialect
) -> list[LinkedException]:
    """Link the exceptions from a policy."""
    return [
        LinkedException(one, link_conditions(one.conditions, dialect))
        for one in exceptions
    ]


def is_expired(exception: CelExceptionIR, runtime: Runtime) -> bool:
    """Return whether it has expired.

    KYVERNO: 1.19 adds the expiry, which its command line does not look at.
    """
    if exception.expires_at_ns is None:
        return False
    since = (runtime.now() - _EPOCH) // timedelta(microseconds=1)
    return since * 1000 >= exception.expires_at_ns


def exempting(
    linked: Sequence[LinkedException],
    facts: Facts,
    opened: Callable[[], KindScope],
    met: _Met,
) -> list[CelExceptionIR]:
    """Return the exceptions that apply in a review.

    One that fails exempts nothing, as do those that come when the cost of all is spent;
    ``facts.faults`` gets one entry for each policy. ``opened`` opens the variables of
    an exception, ``met`` returns whether its conditions are true.

    SAFETY: whoever may write an exception in one namespace could otherwise spend the
    steps of a policy of the cluster, which then denies everything.
    KYVERNO: one that fails is an error of the policy.
    """
    runtime, left = facts.runtime, _EXCEPTIONS_COST_MAX
    share = max(left // max(len(linked), 1), _EXCEPTION_COST_MIN)
    found: list[CelExceptionIR] = []
    failures: list[str] = []
    for one in linked:
        if is_expired(one.ir, runtime):
            continue
        if not one.conditions:
            found.append(one.ir)
            continue
        if left <= 0 or runtime.exception_steps >= EXCEPTION_STEPS_MAX:
            failures.append(f"{one.ir.key}: the steps of all exceptions are spent")
            continue
        scope = opened()
        cost = min(share, left)
        scope.limit_cost(cost)
        rest = runtime.set_aside()
        try:
            if met(one.conditions, scope):
                found.append(one.ir)
        except (ExpressionFailed, BudgetExceeded) as error:
            failures.append(f"{one.ir.key}: {error.message}")
        finally:
            runtime.restore(rest)
            left -= cost - scope.cost_left + _EXCEPTION_COST
    if failures and not facts.faults and facts.faults is not None:
        others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        text = f"PolicyException {failures[0]}{others}"
        facts.faults.append(ExpressionFailed("cel.exception", text))
    return found
