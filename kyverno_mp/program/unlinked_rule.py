"""Stand for a rule that could not be linked: an error, and linked again later.

Room: program. Takes: a validate rule, and the reason. Gives: LinkedRules. Next:
program/engine.py. May touch: nothing outside its arguments.

A rule that this version cannot evaluate stays an error. Anything else is an internal
error, which may not recur: each review with the rule takes the way of an internal
error, so the failurePolicy decides, and some of them link the rule again.
"""

import msgspec

from kyverno_mp.errors import InputError, StateError
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.limits import RELINKING_REVIEWS_MAX
from kyverno_mp.program.bodies.outcome import EXPLAIN, FAILED
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule import LinkedRule

_WHAT = "a rule that fails to link"


def unlinked(policy: PolicyIR, rule: RuleIR, error: Exception) -> LinkedRule:
    """Return the rule without its body. It still matches."""
    if isinstance(error, InputError):
        return LinkedRule(policy, _without_body(rule, f"{_WHAT} ({error.code})"))
    return RelinkedRule(policy, rule)


def _without_body(rule: RuleIR, reason: str) -> RuleIR:
    return msgspec.structs.replace(
        rule,
        unsupported=reason,
        validate=None,
        context=(),
        preconditions=None,
        cel_preconditions=(),
    )


class RelinkedRule(LinkedRule):
    """A rule whose linking ended in an internal error.

    The first review tries again at once, later ones after 2, 4, 8, ... reviews, so the
    rule's author cannot make every review link it.
    """

    __slots__ = ("_next_review", "_reviews", "_whole")

    def __init__(self, policy: PolicyIR, rule: RuleIR) -> None:
        super().__init__(policy, _without_body(rule, _WHAT))
        self.ir = rule
        self._reads = None
        self._whole: LinkedRule | None = None
        self._reviews = 0
        self._next_review = 1

    def fast(self, request: Request, scope: RuleContext) -> int:
        """Return the fast code of the linked rule. Raises: as ``_linked``."""
        code = self._linked(scope).fast(request, scope)
        # For a failure, a batch uses this rule's constant message, and it has none.
        return EXPLAIN if code == FAILED else code

    def explain(self, request: Request, scope: RuleContext) -> list[RuleResult]:
        """Return the results of the linked rule. Raises: as ``_linked``."""
        return self._linked(scope).explain(request, scope)

    def _linked(self, scope: RuleContext) -> LinkedRule:
        """Return the linked rule.

        Raises: the internal error of linking; StateError if it is not linked now;
        Preempted, because linking can take long.
        """
        whole = self._whole
        if whole is not None:
            return whole
        if self._reviews + 1 < self._next_review:
            self._reviews += 1
            raise StateError("program.unlinked", "the rule could not be linked")
        scope.runtime.before_waiting()
        self._reviews += 1
        self._next_review = self._reviews + min(self._reviews, RELINKING_REVIEWS_MAX)
        whole = self._whole = LinkedRule(self.policy, self.ir)
        return whole
