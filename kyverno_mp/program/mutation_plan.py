"""Change the object of one admission request by its mutate rules.

Room: program. Takes: the policies that program/planner.py selected. Gives:
MutationPlan, run by the webhook. Next: program/mutation.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 2.5, 2.6.
"""

from kyverno_mp.errors import BudgetExceeded, DeadlinePassed, Preempted
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.matching.candidates import RuleSource
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.mutation import (
    MutatingPolicy,
    Mutations,
    answer_patch,
    is_standard,
    mutate_request,
)
from kyverno_mp.program.namespace_reads import reads_namespace
from kyverno_mp.program.planner import SLOW, Picked, PlannerOf
from kyverno_mp.program.request import Request


def link_mutation(policy: PolicyIR, rule: RuleIR) -> LinkedMutation | None:
    """Link one rule; rule sources call it when a rule is first needed."""
    return LinkedMutation(policy, rule) if rule.rule_type == "mutate" else None


class _Prepared:
    """The part that is the same for every request with these candidates."""

    __slots__ = ("asking", "fails", "policies", "reads_namespace")

    def __init__(self, policies: list[MutatingPolicy]) -> None:
        self.policies = policies
        self.fails = any(p.failure_policy == "Fail" for p, _ in self.policies)
        self.asking = frozenset(
            number
            for number, (_, rules) in enumerate(self.policies)
            if any(rule.ir.effects & SLOW for rule in rules)
        )
        """Indexes of the policies that may make an external call."""
        self.reads_namespace = any(
            reads_namespace(policy, rule.ir)
            for policy, rules in self.policies
            for rule in rules
        )


class MutationPlan:
    """The policies that may mutate one request, selected and not yet run."""

    __slots__ = (
        "_begun",
        "_engine",
        "_prepared",
        "_request",
        "fails",
        "needs_io",
        "reads_namespace",
    )

    def __init__(self, engine: Engine, request: Request, prepared: _Prepared) -> None:
        self._engine = engine
        self._request = request
        self._prepared = prepared
        self._begun: Mutations | None = None
        self.fails = prepared.fails
        self.needs_io = bool(prepared.asking)
        self.reads_namespace = prepared.reads_namespace

    def run(self, deadline_ns: int, pace: Pace | None = None) -> Mutations:
        """Apply the policies in order.

        Raises the error of a policy with failurePolicy Fail, and DeadlinePassed at the
        deadline; other policies that raise are dropped, and the rest is applied. Raises
        also: Preempted.
        """
        context = self._engine.open(self._request, deadline_ns, pace)
        self._begun = Mutations([], [])
        return mutate_request(self._prepared.policies, context, self._begun)

    def run_rest(self, deadline_ns: int, pace: Pace | None = None) -> Mutations:
        """Skip the policy that ``run`` has reached, and those with external calls.

        For a run that raised, was late or never began: its earlier results stay, and
        the other policies are applied while time is left. Another thread may still be
        in ``run``. If a policy has failurePolicy Fail, nothing is applied.
        """
        done = Mutations([], [])
        if self.fails:
            return done
        context = self._engine.open(self._request, deadline_ns, pace)
        next_one, begun = 0, self._begun
        resource = self._request.object
        if begun is not None and begun.reached is not None:
            at, resource, count = begun.reached
            next_one = at + 1
            done.responses += begun.responses[:count]
            done.left_out += begun.left_out
        prepared = self._prepared
        policies = [
            each
            for number, each in enumerate(prepared.policies)
            if number >= next_one and number not in prepared.asking
        ]
        done.reached = -1, resource, len(done.responses)
        try:
            return mutate_request(policies, context, done)
        except (DeadlinePassed, Preempted):
            del done.responses[done.reached[2] :]
            try:
                done.patch = answer_patch(context, done.reached[1], late=True)
            except BudgetExceeded:
                done.responses.clear()
            return done


class MutationPlanner(PlannerOf[LinkedMutation | None, _Prepared, MutationPlan]):
    """Creates plans of the rules that mutate admitted objects."""

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
