"""Pick the policies that mutate one admission request.

Room: program. Takes: Request, a RuleSource of mutate rules. Gives: MutationPlan, run by
the webhook. Next: program/planner.py picks; program/mutation.py.
May touch: nothing outside its arguments.
Source: spec/controllers.md 2.5, 2.6.
"""

from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.candidates import RuleSource
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.mutation import (
    MutatingPolicy,
    Mutations,
    is_standard,
    mutate_request,
)
from kyverno_mp.program.planner import SLOW, Picked, PlannerOf
from kyverno_mp.program.request import Request


def link_mutation(policy: PolicyIR, rule: RuleIR) -> LinkedMutation | None:
    """Link one rule; what rule sources call for a rule that is asked for."""
    return LinkedMutation(policy, rule) if rule.rule_type == "mutate" else None


class _Prepared:
    """What is the same for every request with these candidates."""

    __slots__ = ("fails", "needs_io", "policies")

    def __init__(self, policies: list[MutatingPolicy]) -> None:
        self.policies = policies
        self.fails = any(p.failure_policy == "Fail" for p, _ in self.policies)
        self.needs_io = any(
            rule.ir.effects & SLOW for _, rules in self.policies for rule in rules
        )


class MutationPlan:
    """The policies that may mutate one request, picked and not yet run."""

    __slots__ = ("_engine", "_policies", "_request", "fails", "needs_io")

    def __init__(self, engine: Engine, request: Request, prepared: _Prepared) -> None:
        self._engine = engine
        self._request = request
        self._policies = prepared.policies
        self.fails = prepared.fails
        self.needs_io = prepared.needs_io

    def run(self, deadline_ns: int) -> Mutations:
        """Apply the policies in order. Raises: DependencyError."""
        context = self._engine.open(self._request, deadline_ns)
        return mutate_request(self._policies, context)


class MutationPlanner(PlannerOf[LinkedMutation | None, _Prepared, MutationPlan]):
    """Plans of the rules that mutate what is admitted."""

    __slots__ = ()

    def __init__(
        self, engine: Engine, source: RuleSource[LinkedMutation | None]
    ) -> None:
        super().__init__(engine, source, _prepare, MutationPlan)


def _prepare(picked: Picked[LinkedMutation | None]) -> _Prepared | None:
    policies: list[MutatingPolicy] = []
    for policy, linked in picked:
        rules = [rule for rule in linked if rule is not None]
        if is_standard(rules):
            policies.append((policy, rules))
    return _Prepared(policies) if policies else None
