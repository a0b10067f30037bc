"""Compile condition blocks to closures.

Room: expr. Takes: Conditions. Gives: ConditionsProgram with ``holds`` (fast) and
``evaluate`` (with messages). Next: program.
Source: docs/behaviour/engine 4.1; Kyverno pkg/engine/variables/evaluate.go.
"""

from collections.abc import Callable
from typing import NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.conditions.effort import (
    Weight,
    charge_comparison,
    charge_test,
    weight_of,
)
from kyverno_mp.expr.conditions.nodes import Condition, Conditions
from kyverno_mp.expr.conditions.operators import comparison, prepared
from kyverno_mp.expr.scope import Scope
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.values.jsonvalue import Json

Check = Callable[[Scope], bool]
_Checks = tuple[tuple[Check, str], ...]


class ConditionsProgram(NamedTuple):
    """A linked block as two equivalent programs; the second one returns messages.

    ``holds(scope)`` returns whether the block is true; ``evaluate(scope)`` also returns
    the joined messages. Both raise ExpressionFailed with upstream's message.
    """

    holds: Check
    evaluate: Callable[[Scope], tuple[bool, str]]


def link_conditions(conditions: Conditions) -> ConditionsProgram:
    """Link a block of conditions."""
    all_of: _Checks = tuple((_link(c), c.message) for c in conditions.all)
    any_of: _Checks | None = (
        None
        if conditions.any is None
        else tuple((_link(c), c.message) for c in conditions.any)
    )
    if conditions.of_exception:
        return _link_exception(any_of or (), all_of)
    if conditions.legacy:
        return ConditionsProgram(_all_hold(all_of), _evaluate_legacy(all_of))
    if any_of is None:
        return ConditionsProgram(_all_hold(all_of), _evaluate_any_all(None, all_of))
    return ConditionsProgram(
        _any_all_hold(any_of, all_of), _evaluate_any_all(any_of, all_of)
    )


def _all_hold(all_of: _Checks) -> Check:
    if len(all_of) == 1:
        return all_of[0][0]
    checks = tuple(check for check, _ in all_of)

    def holds(scope: Scope) -> bool:
        # PERF: a plain loop; a generator would cost one more frame per check.
        for check in checks:  # noqa: SIM110 - see above
            if not check(scope):
                return False
        return True

    return holds


def _any_all_hold(any_of: _Checks, all_of: _Checks) -> Check:
    any_checks = tuple(check for check, _ in any_of)
    all_holds = _all_hold(all_of)

    def holds(scope: Scope) -> bool:
        any_holds = False
        for check in any_checks:
            if check(scope):
                any_holds = True
                break
        # KYVERNO: "all" is evaluated even if "any" failed, because its errors count
        # (docs/behaviour/engine 4.1).
        return all_holds(scope) and any_holds

    return holds


def _evaluate_any_all(
    any_of: _Checks | None, all_of: _Checks
) -> Callable[[Scope], tuple[bool, str]]:
    def evaluate(scope: Scope) -> tuple[bool, str]:
        passed: list[str] = []
        failed: list[str] = []
        any_result = any_of is None
        for check, message in any_of or ():
            if check(scope):
                any_result = True
                passed.append(message)
                break
            failed.append(message)
        all_result = True
        for check, message in all_of:
            if not check(scope):
                all_result = False
                failed.append(message)
                break
            passed.append(message)
        result = any_result and all_result
        return result, "; ".join(filter(None, passed if result else failed))

    return evaluate


def _evaluate_legacy(checks: _Checks) -> Callable[[Scope], tuple[bool, str]]:
    def evaluate(scope: Scope) -> tuple[bool, str]:
        for check, message in checks:
            if not check(scope):
                return False, message
        return True, ";".join(message for _, message in checks if message)

    return evaluate


def _link_exception(any_of: _Checks, all_of: _Checks) -> ConditionsProgram:
    """Link exception conditions.

    KYVERNO: "all" comes first, then "any"; an empty "any" is true
    (docs/behaviour/engine 4.1).
    """
    all_holds = _all_hold(all_of)
    any_checks = tuple(check for check, _ in any_of)

    def holds(scope: Scope) -> bool:
        if not all_holds(scope):
            return False
        for check in any_checks:
            if check(scope):
                return True
        return not any_checks

    return ConditionsProgram(holds, lambda scope: (holds(scope), ""))


def _link(condition: Condition) -> Check:
    compare = comparison(condition.operator)
    if compare is None:
        return _link_unknown(condition)
    if not condition.value.is_constant:
        return _link_dynamic_value(condition, compare)
    value = condition.value.constant
    test = prepared(condition.operator, value)
    assert test is not None
    if condition.key.is_constant:
        weight = weight_of(value, None)
        return _link_constant(condition.key.constant, test, weight)
    return _link_dynamic_key(condition, test)


def _link_dynamic_key(condition: Condition, test: Callable[[Json], bool]) -> Check:
    resolve = link_document(condition.key)
    weight = weight_of(condition.value.constant, None)
    short_to, steps = weight.short_to, weight.steps

    def check(scope: Scope) -> bool:
        try:
            key = resolve(scope)
        except ExpressionFailed as error:
            raise _unresolved("key", error) from error
        # PERF: a short key is charged without a call.
        if type(key) is str and len(key) <= short_to:
            scope.runtime.steps_left -= steps + len(key)
        else:
            charge_test(scope.runtime, key, weight, short_to=short_to, steps=steps)
        return test(key)

    return check


def _link_dynamic_value(
    condition: Condition, compare: Callable[[Json, Json], bool]
) -> Check:
    resolve_key = link_document(condition.key)
    resolve_value = link_document(condition.value)

    def check(scope: Scope) -> bool:
        try:
            key = resolve_key(scope)
        except ExpressionFailed as error:
            raise _unresolved("key", error) from error
        try:
            value = resolve_value(scope)
        except ExpressionFailed as error:
            raise _unresolved("value", error) from error
        charge_comparison(scope.runtime, key, value)
        return compare(key, value)

    return check


def _link_constant(key: Json, test: Callable[[Json], bool], weight: Weight) -> Check:
    short_to, steps = weight.short_to, weight.steps

    def check(scope: Scope) -> bool:
        charge_test(scope.runtime, key, weight, short_to=short_to, steps=steps)
        return test(key)

    return check


def _link_unknown(condition: Condition) -> Check:
    """Fail for an unknown operator, but only after substituting both sides."""

    def refuse(_key: Json, _value: Json) -> bool:
        raise ExpressionFailed(
            "conditions.operator",
            "failed to create handler for condition operator: %!w(<nil>)",
        )

    return _link_dynamic_value(condition, refuse)


def _unresolved(side: str, error: ExpressionFailed) -> ExpressionFailed:
    return ExpressionFailed(
        error.code,
        f"failed to substitute variables in condition {side}: {error.message}",
    )
