"""Evaluate GeneratingPolicies, whose expressions generate objects through a port.

Room: program. Takes: GeneratingPolicyIR linked once; Facts. Gives: a RuleResult, None
if nothing matches. Next: cli/apply/stages/cel.py. May touch: the cluster and registries
through CEL ports.
Source: docs/behaviour/cel 10.2; Kyverno
pkg/cel/policies/gpol/{compiler/policy.go,engine/engine.go}.
"""

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.cel_policies.scope import (
    PolicyScope,
    dialect_of,
    exceptions_of,
    met,
)
from kyverno_mp.program.context.cel_scope import Shared, link, link_variables
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import fault_or_match
from kyverno_mp.program.validating_policy.evaluate import exempt
from kyverno_mp.program.validating_policy.exceptions import link_exceptions
from kyverno_mp.program.validating_policy.scope import Facts


class LinkedGeneratingPolicy:
    """One linked policy; safe to share between threads."""

    __slots__ = ("_conditions", "_exceptions", "_generations", "_variables", "ir")

    def __init__(self, ir: GeneratingPolicyIR) -> None:
        self.ir = ir
        dialect = dialect_of(ir.policy.kind)
        self._conditions = link_conditions(ir.conditions, dialect)
        self._variables = link_variables(ir.variables, dialect)
        self._generations = [link(one, dialect) for one in ir.generations]
        self._exceptions = link_exceptions(ir.exceptions, dialect)

    def evaluate(
        self, facts: Facts, shared: Shared, *, reads_all: bool = False
    ) -> RuleResult | None:
        """Return the verdict; the port collects the generated objects.

        ``reads_all``: evaluation continues after an expression has failed.
        """
        if self.ir.constraints is None:
            return None
        is_match, fault = fault_or_match(self.ir.constraints, facts.request)
        if fault:
            return self._verdict(result.ERROR, f"failed to execute matching: {fault}")
        if not is_match:
            return None
        try:
            return self._decided(facts, shared, reads_all=reads_all)
        except (ExpressionFailed, BudgetExceeded) as error:
            text = f"failed to evaluate policy: {error.message}"
            return self._verdict(result.ERROR, text)

    def _decided(self, facts: Facts, shared: Shared, *, reads_all: bool) -> RuleResult:
        """Return the verdict on a matching object.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        scope = PolicyScope(facts, shared, self._variables, self.ir.policy.namespace)
        matching = exceptions_of(self._exceptions, scope, facts.runtime)
        # KYVERNO: this is the behaviour of 1.19, as for a ValidatingPolicy.
        if any(not (one.images or one.allowed_values) for one in matching):
            return exempt(matching, result.GENERATION)
        scope.allow(
            [image for one in matching for image in one.images],
            [value for one in matching for value in one.allowed_values],
        )
        # KYVERNO: if conditions are not met, the policy passes without generating
        # objects; the values of the expressions are ignored (docs/behaviour/cel 14).
        if met(self._conditions, scope):
            self._generate(scope, reads_all=reads_all)
        return self._verdict(result.PASS, "policy evaluated successfully")

    def _generate(self, scope: PolicyScope, *, reads_all: bool) -> None:
        """Evaluate all expressions. Raises: ExpressionFailed, BudgetExceeded."""
        failure: ExpressionFailed | None = None
        for generation in self._generations:
            try:
                scope.value(generation)
            except ExpressionFailed as error:
                failure = failure or error
                if not reads_all:
                    break
        if failure is not None:
            raise failure

    def _verdict(self, status: str, text: str) -> RuleResult:
        return RuleResult(self.ir.policy.name, result.GENERATION, status, text)
