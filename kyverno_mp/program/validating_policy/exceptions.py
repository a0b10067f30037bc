"""Evaluate the exceptions to one CEL policy.

Room: program. Takes: CelExceptionIR linked once; Facts. Gives: LinkedException,
``link_exceptions``, ``applying``, ``exempted``, ``is_expired``. Next: evaluate.py here
and in program/image_policies, program/cel_policies/scope.py.
Source: docs/behaviour/cel 6; docs/differences.md (PolicyExceptions).
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import CelExceptionIR
from kyverno_mp.limits import EXCEPTION_STEPS_MAX
from kyverno_mp.program import result
from kyverno_mp.program.bodies.cel import COST_MAX
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.context.cel_scope import Dialect, LinkedExpression
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.scope import Facts, KindScope, met
from kyverno_mp.values.go.gotime import unix_ns

_EXCEPTIONS_COST_MAX: Final = COST_MAX // 2
"""A quarter of a policy's steps, for all exceptions to it in one review."""
_EXCEPTION_COST_MIN: Final = 10_000
"""Half a millisecond, enough for some hundred comparisons."""
_EXCEPTION_COST: Final = 50
"""Cost of an exception besides its conditions; limits evaluations to 100,000."""


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
    expires_at_ns = exception.expires_at_ns
    if expires_at_ns is None:
        return False
    return expires_at_ns <= unix_ns(runtime.now())


def exempted(
    linked: Sequence[LinkedException],
    facts: Facts,
    scope: KindScope,
    opened: Callable[[], KindScope],
    rule_type: str,
    policy: PolicyIR | None = None,
) -> RuleResult | None:
    """Return the result of an object that is fully exempt.

    Otherwise, set ``exceptions`` to what the exceptions allow. Raises: as ``applying``.
    """
    scope.unset("exceptions")
    matching = applying(linked, facts, scope, opened, policy)
    # KYVERNO: this is the behaviour of 1.19; in 1.18 an exception for only some images
    # or values cancels a full exception (docs/behaviour/v1.19 5).
    if any(not (each.images or each.allowed_values) for each in matching):
        return _exempt(matching, rule_type)
    scope.allow(
        [image for each in matching for image in each.images],
        [value for each in matching for value in each.allowed_values],
    )
    return None


def _exempt(matching: Sequence[CelExceptionIR], rule_type: str) -> RuleResult:
    """Return the result for exceptions; the highest priority decides."""
    chosen = max(matching, key=lambda each: each.priority)
    status, word = (
        (result.PASS, "passed") if chosen.is_pass else (result.SKIP, "skipped")
    )
    keys = tuple(each.key for each in matching)
    message = f"rule is {word} due to policy exception: {', '.join(keys)}"
    return RuleResult("exception", rule_type, status, message, exceptions=keys)


def applying(
    linked: Sequence[LinkedException],
    facts: Facts,
    scope: KindScope,
    opened: Callable[[], KindScope],
    policy: PolicyIR | None = None,
) -> list[CelExceptionIR]:
    """Return the exceptions that apply; ``policy``: as for ``met``.

    KYVERNO: upstream turns a failed exception into a policy error, so the author of an
    exception can block all requests that the policy matches. In reviews, we ignore a
    failed exception instead. ``opened`` creates the variables for such an exception.
    Raises: the errors of ``met``, except in reviews.
    """
    if facts.faults is not None:
        return _applying_in_review(linked, facts, opened, policy)
    return [
        each.ir
        for each in linked
        if not is_expired(each.ir, facts.runtime)
        and met(each.conditions, scope, policy)
    ]


def _applying_in_review(
    linked: Sequence[LinkedException],
    facts: Facts,
    opened: Callable[[], KindScope],
    policy: PolicyIR | None,
) -> list[CelExceptionIR]:
    """Return the exceptions that apply in a review.

    A failed exception exempts nothing, and neither do exceptions after the common
    budget is exhausted; ``facts.faults`` receives one entry per policy.

    SAFETY: otherwise, users who can create exceptions in one namespace could exhaust
    the budget of a cluster policy, which would then deny everything.
    """
    runtime, cost_left = facts.runtime, _EXCEPTIONS_COST_MAX
    share = max(cost_left // max(len(linked), 1), _EXCEPTION_COST_MIN)
    matching: list[CelExceptionIR] = []
    failures: list[str] = []
    for each in linked:
        if is_expired(each.ir, runtime):
            continue
        if not each.conditions:
            matching.append(each.ir)
            continue
        key = each.ir.key
        if cost_left <= 0 or runtime.exception_steps >= EXCEPTION_STEPS_MAX:
            failures.append(f"{key}: the budget of all exceptions is exhausted")
            continue
        scope = opened()
        cost = min(share, cost_left)
        scope.limit_cost(cost)
        rest = runtime.set_aside()
        try:
            if met(each.conditions, scope, policy):
                matching.append(each.ir)
        except (ExpressionFailed, BudgetExceeded) as error:
            failures.append(f"{key}: {error.message}")
        finally:
            runtime.restore(rest)
            cost_left -= cost - scope.cost_left + _EXCEPTION_COST
    if failures and not facts.faults and facts.faults is not None:
        suffix = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        message = f"PolicyException {failures[0]}{suffix}"
        facts.faults.append(ExpressionFailed("cel.exception", message))
    return matching
