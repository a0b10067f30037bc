"""Stand for a rule that could not be linked: an error, and linked again later.

Room: program. Takes: a rule, and the reason. Gives: LinkedRules, and the rules of the
mutating webhook. Next: relinking.py, engine.py. May touch: nothing outside its
arguments.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from kyverno_mp.errors import InputError, Preempted
from kyverno_mp.ir.rules import MutateIR, PolicyIR, RuleIR, VerifyImagesIR
from kyverno_mp.program.bodies.outcome import EXPLAIN, FAILED
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.images.rule import ImageState, LinkedImageRule
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.relinking import Relinking, StandIn
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.values.jsonvalue import Json

AnyRuleT = TypeVar("AnyRuleT", LinkedRule, LinkedMutation, LinkedImageRule)
_WHAT = "a rule that fails to link"


def unlinked(policy: PolicyIR, rule: RuleIR, error: Exception) -> LinkedRule:
    """Return the rule without its body. It still matches."""
    if isinstance(error, InputError):
        return LinkedRule(policy, _without_body(rule, f"{_WHAT} ({error.code})"))
    return RelinkedRule(policy, rule, error)


def unlinked_change(
    policy: PolicyIR, rule: RuleIR, error: Exception
) -> "RelinkedMutation | RelinkedImageRule":
    """Return the rule of the mutating webhook without its body. It still matches."""
    if rule.verify_images is not None and not rule.unsupported:
        return RelinkedImageRule(policy, rule, error)
    return RelinkedMutation(policy, rule, error)


def _without_body(rule: RuleIR, reason: str) -> RuleIR:
    return msgspec.structs.replace(
        rule,
        unsupported=reason,
        validate=None,
        context=(),
        preconditions=None,
        cel_preconditions=(),
    )


def _of_all(policy: PolicyIR) -> PolicyIR:
    """Return the policy without its matchConditions."""
    return msgspec.structs.replace(policy, match_conditions=())


def _matching(
    relinking: "Relinking[AnyRuleT]", bare: Callable[[Request], bool]
) -> Callable[[Request], bool]:
    """Return the match of the linked rule; before, that without matchConditions."""

    def matches(request: Request) -> bool:
        whole = relinking.whole
        return bare(request) if whole is None else whole.matches(request)

    return matches


class RelinkedRule(LinkedRule, StandIn):
    """A rule whose linking ended in an internal error."""

    __slots__ = ("_relinking",)

    def __init__(self, policy: PolicyIR, rule: RuleIR, error: Exception) -> None:
        super().__init__(_of_all(policy), _without_body(rule, _WHAT))
        self.policy, self.ir, self._reads = policy, rule, None
        self._relinking = Relinking(partial(LinkedRule, policy, rule), error)
        self.matches = _matching(self._relinking, self.matches)

    def fast(self, request: Request, scope: RuleContext) -> int:
        """Return the fast code of the linked rule. Raises: as Relinking.linked."""
        code = self._relinking.linked(scope.runtime).fast(request, scope)
        # For a failure, a batch uses this rule's constant message, and it has none.
        return EXPLAIN if code == FAILED else code

    def explain(self, request: Request, scope: RuleContext) -> list[RuleResult]:
        """Return the results of the linked rule. Raises: as Relinking.linked."""
        return self._relinking.linked(scope.runtime).explain(request, scope)


def _bare(rule: RuleIR) -> RuleIR:
    """Return the rule with only its match."""
    return msgspec.structs.replace(
        rule,
        mutate=None if rule.mutate is None else MutateIR(),
        verify_images=None if rule.verify_images is None else VerifyImagesIR(()),
        context=(),
        preconditions=None,
        cel_preconditions=(),
        exceptions=(),
        report_properties=(),
    )


class RelinkedMutation(LinkedMutation, StandIn):
    """A mutate rule whose linking has failed."""

    __slots__ = ("_relinking",)

    def __init__(self, policy: PolicyIR, rule: RuleIR, error: Exception) -> None:
        super().__init__(_of_all(policy), _bare(rule))
        self.policy, self.ir = policy, rule
        self.is_existing = rule.mutate is not None and rule.mutate.targets is not None
        self.has_exceptions = bool(rule.exceptions)
        self._relinking = Relinking(partial(LinkedMutation, policy, rule), error)
        self.matches = _matching(self._relinking, self.matches)

    def run(
        self, request: Request, scope: RuleContext, resource: dict[str, Json]
    ) -> tuple[list[RuleResult], dict[str, Json]]:
        """Run the linked rule. Raises: as Relinking.linked."""
        return self._relinking.linked(scope.runtime).run(request, scope, resource)


class RelinkedImageRule(LinkedImageRule, StandIn):
    """A verifyImages rule whose linking has failed."""

    __slots__ = ("_relinking",)

    def __init__(self, policy: PolicyIR, rule: RuleIR, error: Exception) -> None:
        super().__init__(_of_all(policy), _bare(rule))
        self.policy, self.ir = policy, rule
        self.verification = rule.verify_images or self.verification
        self._relinking = Relinking(partial(LinkedImageRule, policy, rule), error)
        self.matches = _matching(self._relinking, self.matches)

    def run(
        self, request: Request, scope: RuleContext, state: ImageState
    ) -> list[RuleResult]:
        """Run the linked rule. Raises: as Relinking.linked."""
        try:
            whole = self._relinking.linked(scope.runtime)
        except Preempted:
            raise
        except Exception:
            self.record_failed(scope, state)
            raise
        return whole.run(request, scope, state)
