"""Stand for a rule of the mutating webhook that could not be linked.

Room: program. Takes: a rule, and the reason. Gives: LinkedMutations and
LinkedImageRules. Next: relinking.py, program/plans/mutation_plan.py.
"""

from functools import partial

import msgspec

from kyverno_mp.errors import Preempted
from kyverno_mp.ir.rules import MutateIR, PolicyIR, RuleIR, VerifyImagesIR
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.images.rule import ImageState, LinkedImageRule
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.relinking import Relinking, StandIn
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.unlinked_rule import matching, of_all
from kyverno_mp.values.jsonvalue import Json


def unlinked_change(
    policy: PolicyIR, rule: RuleIR, error: Exception
) -> "RelinkedMutation | RelinkedImageRule":
    """Return the rule of the mutating webhook without its body. It still matches."""
    if rule.verify_images is not None and not rule.unsupported:
        return RelinkedImageRule(policy, rule, error)
    return RelinkedMutation(policy, rule, error)


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
        super().__init__(of_all(policy), _bare(rule))
        self.policy, self.ir = policy, rule
        self.is_existing = rule.mutate is not None and rule.mutate.targets is not None
        self.has_exceptions = bool(rule.exceptions)
        self._relinking = Relinking(partial(LinkedMutation, policy, rule), error)
        self.matches = matching(self._relinking, self.matches)

    def run(
        self, request: Request, scope: RuleContext, resource: dict[str, Json]
    ) -> tuple[list[RuleResult], dict[str, Json]]:
        """Run the linked rule. Raises: as Relinking.linked."""
        return self._relinking.linked(scope.runtime).run(request, scope, resource)


class RelinkedImageRule(LinkedImageRule, StandIn):
    """A verifyImages rule whose linking has failed."""

    __slots__ = ("_relinking",)

    def __init__(self, policy: PolicyIR, rule: RuleIR, error: Exception) -> None:
        super().__init__(of_all(policy), _bare(rule))
        self.policy, self.ir = policy, rule
        self.verification = rule.verify_images or self.verification
        self._relinking = Relinking(partial(LinkedImageRule, policy, rule), error)
        self.matches = matching(self._relinking, self.matches)

    def run(
        self, request: Request, scope: RuleContext, state: ImageState
    ) -> list[RuleResult]:
        """Run the linked rule. Raises: as Relinking.linked."""
        try:
            linked = self._relinking.linked(scope.runtime)
        except Preempted:
            raise
        except Exception:
            self.record_failed(scope, state)
            raise
        return linked.run(request, scope, state)
