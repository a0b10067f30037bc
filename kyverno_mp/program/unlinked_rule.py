"""Stand for a rule that could not be linked: an error, and linked again later.

Room: program. Takes: a rule, and the reason. Gives: LinkedRules. Next: relinking.py,
engine.py, unlinked_change.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from kyverno_mp.errors import InputError
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.bodies.outcome import EXPLAIN, FAILED
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.relinking import Relinking, StandIn
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule import LinkedRule

_WHAT = "a rule that fails to link"


class _Matching(Protocol):
    """A linked rule of any kind."""

    @property
    def matches(self) -> Callable[[Request], bool]: ...


MatchingT = TypeVar("MatchingT", bound=_Matching)


def unlinked(policy: PolicyIR, rule: RuleIR, error: Exception) -> LinkedRule:
    """Return the rule without its body. It still matches."""
    if isinstance(error, InputError):
        return LinkedRule(policy, _without_body(rule, f"{_WHAT} ({error.code})"))
    return RelinkedRule(policy, rule, error)


def _without_body(rule: RuleIR, reason: str) -> RuleIR:
    return msgspec.structs.replace(
        rule,
        unsupported=reason,
        validate=None,
        context=(),
        preconditions=None,
        cel_preconditions=(),
    )


def of_all(policy: PolicyIR) -> PolicyIR:
    """Return the policy without its matchConditions."""
    return msgspec.structs.replace(policy, match_conditions=())


def matching(
    relinking: Relinking[MatchingT], bare: Callable[[Request], bool]
) -> Callable[[Request], bool]:
    """Return the match of the linked rule; before, that without matchConditions."""

    def matches(request: Request) -> bool:
        linked = relinking.whole
        return bare(request) if linked is None else linked.matches(request)

    return matches


class RelinkedRule(LinkedRule, StandIn):
    """A rule whose linking ended in an internal error."""

    __slots__ = ("_relinking",)

    def __init__(self, policy: PolicyIR, rule: RuleIR, error: Exception) -> None:
        super().__init__(of_all(policy), _without_body(rule, _WHAT))
        self.policy, self.ir, self._reads = policy, rule, None
        self._relinking = Relinking(partial(LinkedRule, policy, rule), error)
        self.matches = matching(self._relinking, self.matches)

    def fast(self, request: Request, scope: RuleContext) -> int:
        """Return the fast code of the linked rule. Raises: as Relinking.linked."""
        code = self._relinking.linked(scope.runtime).fast(request, scope)
        # For a failure, a batch uses this rule's constant message, and it has none.
        return EXPLAIN if code == FAILED else code

    def explain(self, request: Request, scope: RuleContext) -> list[RuleResult]:
        """Return the results of the linked rule. Raises: as Relinking.linked."""
        return self._relinking.linked(scope.runtime).explain(request, scope)
