"""Order the policies of a batch, and find what their rules share.

Room: program. Takes: policies with their rules of one action. Gives: Layout. Next:
program/plans/batch.py. May touch: nothing outside its arguments.
Source: docs/behaviour/engine 0.4; docs/architecture.md 4.

Policies that need no external call come first, cluster policies before namespaced ones:
their verdicts are reached before an external call can use up the time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_REGISTRY
from kyverno_mp.expr.reads import Reads
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import READS_PLACES_MAX
from kyverno_mp.program.recall.verdicts import Recall, is_worth_it
from kyverno_mp.program.request import Request
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.values.jsonvalue import Json

Chosen = Sequence[tuple[PolicyIR, Sequence[LinkedRule], str]]
"""(policy, its rules of one action, the action of their response)."""

_POLICIES_BETWEEN_CHECKS: Final = 4
"""Policies evaluated between two checks of the clock: static patterns never check it,
and one takes up to 50 ms for an object of 10 MB."""
_PLACES_ADDED_MAX: Final = 4 * READS_PLACES_MAX
"""PERF: the places of all rules are joined in the event loop; most rules read the same
ones."""


class Step(NamedTuple):
    """One rule: its match test; its bare pattern test or None; its shared conditions.

    ``light_to``: bytes of the largest review for which ``bare`` may be used.
    ``shared``: index of the preconditions that it shares with other rules, or -1.
    """

    matches: Callable[[Request], bool]
    bare: Callable[[Json], bool] | None
    light_to: int
    shared: int
    rule: LinkedRule


class BatchPolicy(NamedTuple):
    """One policy.

    ``start``: index of its first rule among all codes; ``order``: its position in the
    policy order, which is the order of responses.
    """

    policy: PolicyIR
    action: str
    start: int
    steps: list[Step]
    only_one: bool
    order: int


class Layout(NamedTuple):
    """The policies of a batch in the order of evaluation.

    ``portions``: the policies, with a check of the clock before each portion;
    ``pure``: those that make no external calls. ``recall``: the cache for the first
    policies, those in ``recalled``; ``others`` come after them. ``shared_count``: of
    the preconditions that rules share.
    """

    policies: list[BatchPolicy]
    portions: list[list[BatchPolicy]]
    pure: list[list[BatchPolicy]]
    recall: Recall | None
    recalled: list[list[BatchPolicy]]
    others: list[list[BatchPolicy]]
    shared_count: int


def lay_out(chosen: Chosen) -> Layout:
    """Return the layout; each policy keeps its place among ``chosen`` as its order."""
    sharing = _Sharing()
    order = sorted(range(len(chosen)), key=lambda at: _urgency(*chosen[at][:2]))
    policies = [sharing.policy(*chosen[at], at) for at in order]
    pure = [p for p in policies if not _asks([step.rule for step in p.steps])]
    count, recall = _recall(policies)
    return Layout(
        policies=policies,
        portions=_portions(policies),
        pure=_portions(pure),
        recall=recall,
        recalled=_portions(policies[:count]),
        others=_portions(policies[count:]),
        shared_count=len(sharing.shared),
    )


def _asks(rules: Iterable[LinkedRule]) -> bool:
    """Return whether a rule may make an external call."""
    return any(rule.effects & (EFFECT_CLUSTER | EFFECT_REGISTRY) for rule in rules)


def _urgency(policy: PolicyIR, rules: Sequence[LinkedRule]) -> tuple[bool, bool, bool]:
    unknown = any(rule.reads is None for rule in rules)
    return _asks(rules), bool(policy.namespace), unknown


def _reads(rules: Iterable[LinkedRule]) -> Reads | None:
    """Return the fields of the new object that rules read; None when unknown."""
    reads = Reads()
    for rule in rules:
        if rule.reads is None:
            return None
        reads.add(rule.reads)
    return reads


def _recall(policies: Iterable[BatchPolicy]) -> tuple[int, Recall | None]:
    """Return how many of the first policies are cacheable, and their cache."""
    first: list[Step] = []
    count = places = 0
    for policy in policies:
        rules = [step.rule for step in policy.steps]
        places += sum(rule.reads.size for rule in rules if rule.reads is not None)
        if _asks(rules) or places > _PLACES_ADDED_MAX or _reads(rules) is None:
            break
        first += policy.steps
        count += 1
    rules = [step.rule for step in first]
    reads = _reads(rules)
    if reads is None or not rules or not is_worth_it(rules) or reads.is_too_large():
        return 0, None
    return count, Recall(reads, dict.fromkeys(step.matches for step in first))


def _portions(policies: list[BatchPolicy]) -> list[list[BatchPolicy]]:
    return [
        policies[start : start + _POLICIES_BETWEEN_CHECKS]
        for start in range(0, len(policies), _POLICIES_BETWEEN_CHECKS)
    ]


class _Sharing:
    """Numbers the tests that rules share."""

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        self._matchers: dict[object, Callable[[Request], bool]] = {}
        self._start = 0

    def policy(
        self, policy: PolicyIR, rules: Iterable[LinkedRule], action: str, order: int
    ) -> BatchPolicy:
        """Add the next policy."""
        steps = [self._step(rule) for rule in rules]
        start = self._start
        self._start += len(steps)
        only_one = policy.apply_rules == "One"
        return BatchPolicy(policy, action, start, steps, only_one, order)

    def _step(self, rule: LinkedRule) -> Step:
        # SAFETY: the test includes the policy's matchConditions, so only rules without
        # any share it with other policies.
        owner = rule.policy.key if rule.policy.match_conditions else ""
        match = (rule.ir.match, rule.ir.exclude, rule.policy.namespace, owner)
        matches = self._matchers.setdefault(match, rule.matches)
        number = -1
        if rule.operation_only is not None:
            # Values may be lists, so records are compared by their repr.
            key = repr(rule.operation_only)
            number = self.shared.setdefault(key, len(self.shared))
        return Step(matches, rule.bare, rule.light_to, number, rule)
