"""Evaluate a ValidatingAdmissionPolicy for a request.

Room: program. Takes: AdmissionPolicyIR linked once; a Request, parameters. Gives: a
RuleResult, None if nothing matches. Next: cli/apply/evaluate.
Source: docs/behaviour/cli 21; Kyverno pkg/admissionpolicy/validate.go; k8s apiserver,
admission/plugin/policy/validating/validator.go.
"""

from collections.abc import Sequence

from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.bindings import (
    binding_properties,
    bindings_of,
)
from kyverno_mp.program.admission_policy.scope import PolicyScopes
from kyverno_mp.program.bodies.cel import COST_MAX, link_validations
from kyverno_mp.program.bodies.cel_conditions import (
    MATCH_CONDITIONS_COST_MAX,
    evaluate,
    link_conditions,
)
from kyverno_mp.program.context.cel_scope import namespace_value
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json

NOT_MET = "match conditions aren't met"


class LinkedValidation:
    """One linked ValidatingAdmissionPolicy."""

    __slots__ = ("_conditions", "_in_cluster", "_scopes", "_validations", "ir")

    def __init__(self, ir: AdmissionPolicyIR, *, in_cluster: bool = False) -> None:
        self.ir = ir
        self._in_cluster = in_cluster
        self._scopes = PolicyScopes(ir.variables)
        self._conditions = link_conditions(ir.conditions)
        self._validations = link_validations(ir.validations)

    def evaluate(
        self, request: Request, runtime: Runtime, params: Sequence[Json]
    ) -> RuleResult | None:
        """Return the verdict; if several bindings apply, the last binding's verdict."""
        rule_result = None
        bound = bindings_of(self.ir, request, params, in_cluster=self._in_cluster)
        for binding, param in bound:
            status, message = self._decide(request, runtime, param)
            properties = binding_properties(binding, "binding")
            name = self.ir.policy.name
            rule_result = RuleResult(
                name, result.VALIDATION, status, message, properties
            )
        return rule_result

    def _decide(
        self, request: Request, runtime: Runtime, param: Json
    ) -> tuple[str, str]:
        """Return status and message; the first validation that is not true decides."""
        bare = self._scopes.open(request, runtime, param, MATCH_CONDITIONS_COST_MAX)
        met, problem = evaluate(self._conditions, bare)
        if problem and self.ir.policy.failure_policy == "Fail":
            return result.ERROR, problem
        if not met:
            return result.SKIP, NOT_MET
        # KYVERNO: the name is absent for a Namespace, which has no namespace.
        namespace = namespace_value(request, labels_known=True) or {
            "metadata": {"creationTimestamp": None},
            "spec": {},
            "status": {},
        }
        scope = self._scopes.open(request, runtime, param, COST_MAX, namespace)
        for validation in self._validations:
            value, problem = scope.evaluate(validation.expression)
            if problem:
                return result.ERROR, problem
            if value is not True:
                return result.FAIL, validation.failure_text(scope)
        return result.PASS, ""
