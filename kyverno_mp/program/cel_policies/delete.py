"""Decide whether a DeletingPolicy deletes an object.

Room: program. Takes: DeletingPolicyIR linked once; Facts. Gives: ``selects``,
``matches``, ``holds``. Next: cli/apply/stages/cel.py, cleanup/deleting.py.
May touch: external systems only through CEL ports.
Source: docs/behaviour/cel 10.3; Kyverno
pkg/cel/policies/dpol/{compiler/policy.go,engine/engine.go}.
"""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.ir.admission_policy import ConstraintsIR, ResourceRuleIR
from kyverno_mp.ir.cel_policies import DeletingPolicyIR
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.cel_policies.scope import (
    UNSET_WITHOUT_REQUEST,
    PolicyScope,
    dialect_of,
)
from kyverno_mp.program.context.cel_scope import Shared, link_variables
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.constraints import fault_or_match
from kyverno_mp.program.validating_policy.exceptions import applying, link_exceptions
from kyverno_mp.program.validating_policy.scope import Facts, met


def any_operation(constraints: ConstraintsIR | None) -> ConstraintsIR | None:
    """Return the constraints for any operation, because there is no request.

    An exclusion applies to all operations; upstream deletes excluded objects
    (docs/differences.md).
    """
    if constraints is None:
        return None
    return msgspec.structs.replace(
        constraints,
        rules=_for_any(constraints.rules),
        excluded=_for_any(constraints.excluded),
    )


def _for_any(rules: Iterable[ResourceRuleIR]) -> tuple[ResourceRuleIR, ...]:
    return tuple(msgspec.structs.replace(rule, operations=("*",)) for rule in rules)


class LinkedDeletingPolicy:
    """One linked policy; safe to share between threads."""

    __slots__ = ("_conditions", "_constraints", "_exceptions", "_variables", "ir")

    def __init__(self, ir: DeletingPolicyIR, *, excludes_any: bool = True) -> None:
        """``excludes_any``: exclusions apply regardless of their operations."""
        self.ir = ir
        dialect = dialect_of(ir.policy.kind)
        self._constraints = any_operation(ir.constraints)
        if self._constraints and ir.constraints and not excludes_any:
            self._constraints = msgspec.structs.replace(
                self._constraints, excluded=ir.constraints.excluded
            )
        self._conditions = link_conditions(ir.conditions, dialect)
        self._variables = link_variables(ir.variables, dialect)
        self._exceptions = link_exceptions(ir.exceptions, dialect)

    def selects(self, facts: Facts) -> bool:
        """Return whether the policy deletes the object.

        KYVERNO: any exception keeps the object, even an exception that only allows
        images or values; an object without apiVersion or kind matches all constraints.
        Raises: ExpressionFailed, BudgetExceeded.
        """
        return self.matches(facts.request) and self.holds(facts)

    def matches(self, request: Request) -> bool:
        """Return whether the constraints match. Raises: ExpressionFailed."""
        resource = request.object
        if not (resource.get("apiVersion") and resource.get("kind")):
            return True
        if self._constraints is None:
            return False
        any_request = replace(request, operation="")
        is_match, fault = fault_or_match(self._constraints, any_request)
        if fault:
            raise ExpressionFailed("cel.selector", fault)
        return is_match

    def holds(self, facts: Facts) -> bool:
        """Return whether no exception applies and all conditions are true.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        request = replace(facts.request, operation="")
        payload = facts._replace(request=request, is_payload=True)
        scope = PolicyScope(
            payload, Shared(request), self._variables, self.ir.policy.namespace
        )
        for name in UNSET_WITHOUT_REQUEST:
            scope.unset(name)
        if applying(self._exceptions, payload, scope, lambda: scope):
            return False
        return met(self._conditions, scope)
