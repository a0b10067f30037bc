"""Evaluate GeneratingPolicies, whose expressions generate objects through a port.

Room: program. Takes: GeneratingPolicyIR linked once; Facts. Gives: a RuleResult, None
if nothing matches. Next: cli/apply/stages/cel.py. May touch: the cluster and registries
through CEL ports.
Source: docs/behaviour/cel 10.2; Kyverno
pkg/cel/policies/gpol/{compiler/policy.go,engine/engine.go} at v1.18.2 and (templates,
annotations) v1.19.0.
"""

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, without_frames
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, GenerationIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.cel_policies.scope import PolicyScope, dialect_of, exempted
from kyverno_mp.program.cel_policies.template import LinkedTemplate
from kyverno_mp.program.context.cel_scope import (
    Dialect,
    LinkedExpression,
    Shared,
    link,
    link_variables,
)
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import fault_or_match
from kyverno_mp.program.validating_policy.evaluate import annotated
from kyverno_mp.program.validating_policy.exceptions import link_exceptions
from kyverno_mp.program.validating_policy.scope import Facts, before_variables, met
from kyverno_mp.values.go.goquote import quote


class LinkedGeneratingPolicy:
    """One linked policy; safe to share between threads."""

    __slots__ = (
        "_annotations",
        "_conditions",
        "_exceptions",
        "_generations",
        "_variables",
        "ir",
    )

    def __init__(self, ir: GeneratingPolicyIR) -> None:
        self.ir = ir
        dialect = dialect_of(ir.policy.kind)
        early = before_variables(dialect)
        self._conditions = link_conditions(ir.conditions, early)
        self._variables = link_variables(ir.variables, dialect)
        self._generations = [
            _linked(generation, dialect) for generation in ir.generations
        ]
        self._annotations = [*link_variables(ir.annotations, dialect).items()]
        self._exceptions = link_exceptions(ir.exceptions, early)

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
            message = f"failed to evaluate policy: {error.message}"
            return self._verdict(result.ERROR, message)

    def _decided(self, facts: Facts, shared: Shared, *, reads_all: bool) -> RuleResult:
        """Return the verdict on a matching object.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        scope = PolicyScope(facts, shared, self._variables, self.ir.policy.namespace)
        exempt = exempted(self._exceptions, scope, facts, shared, result.GENERATION)
        if exempt is not None:
            return exempt
        # KYVERNO: if conditions are not met, the policy passes without generating
        # objects; the values of the expressions are ignored (docs/behaviour/cel 14).
        verdict = self._verdict(result.PASS, "policy evaluated successfully")
        if met(self._conditions, scope):
            self._generate(scope, facts, reads_all=reads_all)
            verdict.properties = annotated(self._annotations, scope, quote)
        return verdict

    def _generate(self, scope: PolicyScope, facts: Facts, *, reads_all: bool) -> None:
        """Evaluate all expressions. Raises: ExpressionFailed, BudgetExceeded."""
        failure: ExpressionFailed | None = None
        for generation in self._generations:
            try:
                if isinstance(generation, LinkedTemplate):
                    generation.apply(scope, facts, self.ir.policy.namespace)
                else:
                    scope.value(generation)
            except ExpressionFailed as error:
                failure = failure or without_frames(error)
                if not reads_all:
                    break
        if failure is not None:
            # SAFETY: a new error object, because a raise adds this frame to it.
            raise type(failure)(failure.code, failure.message, failure.where)

    def _verdict(self, status: str, message: str) -> RuleResult:
        return RuleResult(self.ir.policy.name, result.GENERATION, status, message)


def _linked(ir: GenerationIR, dialect: Dialect) -> LinkedExpression | LinkedTemplate:
    if ir.expression is None:
        return LinkedTemplate(ir.documents, dialect)
    return link(ir.expression, dialect)
