"""Evaluate the exceptions to one CEL policy.

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
"""A quarter of a policy's steps, for all exceptions to it in one review."""
_EXCEPTION_COST_MIN: Final = 10_000
"""Half a millisecond, enough for some hundred comparisons."""
_EXCEPTION_COST: Final = 50
"""Cost of an exception besides its conditions; limits evaluations to 100,000."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Met = Callable[[Sequence[LinkedExpression], KindScope], bool]


class LinkedException(NamedTuple):
    """An exception to a policy."""

    ir: CelExceptionIR
    conditions: list[LinkedExpression]


def link_exceptions(
    exceptions: Sequence[CelExceptionIR], dialect: Dialect
) -> list[LinkedException]:
    """Link the exceptions to a policy."""
    return [
        LinkedException(exception, link_conditions(exception.conditions, dialect))
        for exception in exceptions
    ]


def is_expired(exception: CelExceptionIR, runtime: Runtime) -> bool:
    """Return whether the exception has expired.

    KYVERNO: 1.19 adds the expiry, which its CLI ignores.
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

    A failed exception exempts nothing, and neither do exceptions after the common
    budget is exhausted; ``facts.faults`` receives one entry per policy. ``opened``
    creates the variables of an exception, ``met`` returns whether its conditions are
    true.

    SAFETY: otherwise, users who can create exceptions in one namespace could exhaust
    the budget of a cluster policy, which would then deny everything.
    KYVERNO: upstream turns a failed exception into a policy error.
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
            failures.append(f"{one.ir.key}: the budget of all exceptions is exhausted")
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
        message = f"PolicyException {failures[0]}{others}"
        facts.faults.append(ExpressionFailed("cel.exception", message))
    return found
