"""Judge a Pod or a Pod controller by ``validate.podSecurity``.

Room: program. Takes: PodSecurityIR of one rule. Gives: fast codes and Outcomes.
Next: program/rule.py. May touch: nothing outside its arguments.
Source: spec/engine.md 6.5, 8.7.
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.scope import Scope
from kyverno_mp.ir.rules import PodSecurityExcludeIR, PodSecurityIR
from kyverno_mp.program import result
from kyverno_mp.program.outcome import EXPLAIN, NONE, PASSED, Outcome
from kyverno_mp.program.pod_security.evaluate import evaluate, passes
from kyverno_mp.values.containers import count_containers
from kyverno_mp.values.jsonvalue import Json

_STEPS_PER_CONTAINER: Final = 50


class PodSecurityBody:
    """``validate.podSecurity`` of one rule."""

    def __init__(self, rule: str, ir: PodSecurityIR) -> None:
        self._rule = rule
        self._ir = ir

    def fast(self, scope: Scope, target: Json) -> int:
        """Tell whether no control is violated."""
        if target is None:
            return NONE
        if self._ir.exclude:
            _charge(scope, target)
        return PASSED if passes(self._ir, target, _kind_of(target)) else EXPLAIN

    def explain(
        self,
        scope: Scope,
        target: Json,
        exempt: tuple[PodSecurityExcludeIR, ...] = (),
    ) -> list[Outcome]:
        """Return pass, fail with every violated control, or error.

        ``exempt``: controls of matching PolicyExceptions, taken off the violations.
        """
        if target is None:
            return []
        _charge(scope, target)
        try:
            verdict = evaluate(
                self._ir,
                target,
                _kind_of(target),
                rule=self._rule,
                exempt=exempt,
                images=scope.runtime.images(),
            )
        except ExpressionFailed as error:
            return [Outcome(result.ERROR, error.message)]
        status = result.PASS if verdict.passed else result.FAIL
        return [Outcome(status, verdict.message, dict(verdict.properties))]


def _charge(scope: Scope, target: Json) -> None:
    """Spend, before the work, what a Pod of very many containers would take."""
    scope.runtime.charge(_STEPS_PER_CONTAINER * count_containers(target))


def _kind_of(target: dict[str, Json]) -> str:
    kind = target.get("kind")
    return kind if type(kind) is str else ""
