"""Pick the policies that mutate one admission request.

Room: program. Takes: Request, a RuleSource of mutate rules. Gives: MutationPlan, run by
the webhook. Next: program/mutation.py.
May touch: nothing outside its arguments.
Source: spec/controllers.md 2.5, 2.6.
"""

from collections.abc import Sequence

from kyverno_mp.ir.rules import (
    EFFECT_CLUSTER,
    EFFECT_REGISTRY,
    PolicyIR,
    RuleIR,
)
from kyverno_mp.limits import CANDIDATE_MEMO_ENTRIES_MAX
from kyverno_mp.program.candidates import RuleSource
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.mutation import (
    MutatingPolicy,
    Mutations,
    is_standard,
    mutate_request,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.rule_ref import PolicyCandidates

_SLOW = EFFECT_CLUSTER | EFFECT_REGISTRY
_Candidates = Sequence[PolicyCandidates[LinkedMutation | None]]


def link_mutation(policy: PolicyIR, rule: RuleIR) -> LinkedMutation | None:
    """Link one rule; what rule sources call for a rule that is asked for."""
    return LinkedMutation(policy, rule) if rule.rule_type == "mutate" else None


class _Prepared:
    """What is the same for every request with these candidates."""

    __slots__ = ("candidates", "fails", "needs_io", "policies")

    def __init__(
        self, candidates: _Candidates, failure_policies: frozenset[str], key: str
    ) -> None:
        self.candidates = candidates  # keeps id() of the memo's key valid
        self.policies: list[MutatingPolicy] = []
        for candidate in candidates:
            policy = candidate.policy
            # A path of its own is the policy's, whatever its suffix still says.
            elsewhere = (
                policy.key != key
                if key
                else policy.failure_policy not in failure_policies
            )
            if elsewhere or not policy.admission:
                continue
            linked = [ref.linked for ref in candidate.rules]
            rules = [rule for rule in linked if rule is not None]
            if is_standard(rules):
                self.policies.append((policy, rules))
        self.fails = any(p.failure_policy == "Fail" for p, _ in self.policies)
        self.needs_io = any(
            rule.ir.effects & _SLOW for _, rules in self.policies for rule in rules
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


class MutationPlanner:
    """Makes plans on one rule source; a new snapshot generation gets a new one."""

    __slots__ = ("_engine", "_memo", "_source")

    def __init__(
        self, engine: Engine, source: RuleSource[LinkedMutation | None]
    ) -> None:
        self._engine = engine
        self._source = source
        self._memo: dict[tuple[int, frozenset[str], str], _Prepared] = {}

    def plan(
        self, request: Request, failure_policies: frozenset[str], policy_key: str
    ) -> MutationPlan | None:
        """Pick the candidates; None when no policy can mutate."""
        candidates = self._source.candidates(request)
        if not candidates:
            return None
        key = (id(candidates), failure_policies, policy_key)
        prepared = self._memo.get(key)
        if prepared is None:
            if len(self._memo) >= CANDIDATE_MEMO_ENTRIES_MAX:
                self._memo.clear()
            prepared = _Prepared(candidates, failure_policies, policy_key)
            self._memo[key] = prepared
        if not prepared.policies:
            return None
        return MutationPlan(self._engine, request, prepared)
