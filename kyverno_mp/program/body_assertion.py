"""Judge a request by ``validate.assert``.

Room: program. Takes: the Assertion of one rule. Gives: fast codes and Outcomes.
Next: program/rule.py. May touch: nothing outside its arguments.
Source: spec/engine.md 6.7: each violation is an outcome of its own.
"""

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.assertion.link import link_assertion
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.program import result
from kyverno_mp.program.context import RuleContext
from kyverno_mp.program.outcome import EXPLAIN, PASSED, Outcome
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json


def payload_of(request: Request) -> dict[str, Json]:
    """Return what the assertion tree is held against."""
    review = request.review_request or {}
    return {
        "object": request.object,
        "oldObject": request.old_object,
        "admissionInfo": {
            "roles": list(request.roles),
            "clusterRoles": list(request.cluster_roles),
            "userInfo": review.get("userInfo") or {},
        },
        "operation": request.operation,
        "namespaceLabels": dict(request.namespace_labels),
        "admissionOperation": request.has_user_info,
        "requestResource": review.get("resource") or {},
        "resourceKind": {
            "group": request.group,
            "version": request.version,
            "kind": request.kind,
            "subResource": request.subresource,
        },
    }


class AssertionBody:
    """``validate.assert`` of one rule."""

    def __init__(self, rule: str, assertion: Assertion) -> None:
        self._rule = rule
        self._program = link_assertion(assertion)

    def fast(self, scope: RuleContext, _target: Json) -> int:
        """Tell whether nothing is violated."""
        violations = self._program.judge(payload_of(scope.shared.request), scope)
        return EXPLAIN if violations else PASSED

    def explain(self, scope: RuleContext, _target: Json) -> list[Outcome]:
        """Return one failure per violation, a pass, or an error."""
        try:
            violations = self._program.judge(payload_of(scope.shared.request), scope)
        except ExpressionFailed as error:
            text = f"failed to apply assertion: {error.message}"
            return [Outcome(result.ERROR, text)]
        if not violations:
            return [Outcome(result.PASS, f"Validation rule '{self._rule}' passed.")]
        return [Outcome(result.FAIL, violation.text) for violation in violations]
