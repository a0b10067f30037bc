"""Evaluate ``validate.podSecurity`` for a Pod or a Pod controller.

Room: program. Takes: PodSecurityIR of one rule. Gives: fast codes and Outcomes.
Next: program/rule.py.
Source: docs/behaviour/engine 6.5, 8.7.
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.ir.rules import PodSecurityExcludeIR, PodSecurityIR
from kyverno_mp.limits import LARGE_BODY_BYTES
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import EXPLAIN, NONE, PASSED, Outcome
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.pod_security.decoded import as_decoded
from kyverno_mp.program.pod_security.evaluate import evaluate, passes
from kyverno_mp.values.effort import weigh
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.containers import count_containers

_STEPS_PER_CONTAINER: Final = 8
"""Estimated steps for the fast check that a container complies with all controls."""
_LONG: Final = 64
_STEPS_PER_VALUE: Final = 4
"""For large objects: each value may be a volume, a sysctl, a port or a capability that
the message lists."""


class PodSecurityBody:
    """``validate.podSecurity`` of one rule."""

    def __init__(self, rule: str, ir: PodSecurityIR) -> None:
        self._rule = rule
        self._ir = ir

    def fast(self, scope: RuleContext, target: Json) -> int:
        """Return whether no control is violated."""
        if target is None:
            return NONE
        _charge(scope, target)
        if _is_of_a_file(scope):
            try:
                target = as_decoded(target, _kind_of(target))
            except ExpressionFailed:
                return EXPLAIN
        return (
            PASSED
            if passes(self._ir, target, _kind_of(target), scope.runtime)
            else EXPLAIN
        )

    def explain(
        self,
        scope: RuleContext,
        target: Json,
        exempt: tuple[PodSecurityExcludeIR, ...] = (),
    ) -> list[Outcome]:
        """Return pass, fail with every violated control, or error.

        ``exempt``: controls of matching PolicyExceptions; their violations are removed.
        """
        if target is None:
            return []
        _charge(scope, target)
        try:
            kind = _kind_of(target)
            if _is_of_a_file(scope):
                target = as_decoded(target, kind)
            verdict = evaluate(
                self._ir,
                target,
                kind,
                rule=self._rule,
                exempt=exempt,
                images=scope.runtime.images(),
                spend=scope.runtime,
            )
        except ExpressionFailed as error:
            return [Outcome(result.ERROR, error.message, code=error.code)]
        status = result.PASS if verdict.passed else result.FAIL
        return [Outcome(status, verdict.message, dict(verdict.properties))]


def _is_of_a_file(scope: RuleContext) -> bool:
    """Return whether the object is from a file (CLI), not decoded by an API server."""
    request = scope.shared.request
    return request.review_request is not None and not request.ints_are_numbers


def _charge(scope: RuleContext, target: Json) -> None:
    """Charge in advance for a Pod with many parts.

    PERF: nearly all Pods are small, so only their containers are counted.
    """
    if scope.shared.request.size > LARGE_BODY_BYTES:
        charge = scope.runtime.charge
        charge(_STEPS_PER_VALUE * weigh(target, charge))
    count = count_containers(target)
    if count > _LONG:
        scope.runtime.charge(_STEPS_PER_CONTAINER * count)


def _kind_of(target: dict[str, Json]) -> str:
    kind = target.get("kind")
    return kind if type(kind) is str else ""
