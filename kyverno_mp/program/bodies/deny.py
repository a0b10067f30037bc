"""Evaluate ``validate.deny`` on a request.

Room: program. Takes: Conditions of one rule or foreach entry. Gives: fast codes and
Outcomes. Next: program/rule.py, program/bodies/foreach.py.
Source: docs/behaviour/engine 6.2.
"""

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.scope import Scope
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import EXPLAIN, PASSED, Outcome
from kyverno_mp.program.words import Message
from kyverno_mp.values.jsonvalue import Json


class DenyBody:
    """``validate.deny``: it fails if its conditions are true, on every operation."""

    def __init__(self, rule: str, message: Message, conditions: Conditions) -> None:
        self._rule = rule
        self._message = message
        program = link_conditions(conditions)
        self._holds = program.holds
        self._evaluate = program.evaluate
        silent = not any(
            condition.message
            for condition in (*conditions.all, *(conditions.any or ()))
        )
        self.failure = message.constant_for_deny() if silent else None
        """The message of every failure, if it does not depend on the request."""

    def fast(self, scope: Scope, _target: Json) -> int:
        """Return whether the conditions are false."""
        return EXPLAIN if self._holds(scope) else PASSED

    def explain(self, scope: Scope, _target: Json) -> list[Outcome]:
        """Return a pass, a failure with the rule's message, or an error."""
        try:
            denied, message = self._evaluate(scope)
        except ExpressionFailed as error:
            message = f"failed to check deny conditions: {error.message}"
            return [Outcome(result.ERROR, message, code=error.code)]
        if not denied:
            return [Outcome(result.PASS, f"validation rule '{self._rule}' passed.")]
        return [Outcome(result.FAIL, self._message.for_deny(scope, message))]
