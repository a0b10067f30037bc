"""Order the policies of a batch, and find the tests that their rules share.

Room: program. Takes: policies with their rules of one action. Gives: Layout. Next:
program/plans/batch.py.
Source: docs/behaviour/engine 0.4; docs/architecture.md 4.

Policies without external calls come first, cluster policies before namespaced policies,
so they are decided before an external call can use up the time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_REGISTRY
from kyverno_mp.expr.reads import Reads, identifies
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import READS_PLACES_MAX
from kyverno_mp.program.recall.verdicts import Recall, is_worth_it
from kyverno_mp.program.request import Request
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.values.jsonvalue import Json

Chosen = Sequence[tuple[PolicyIR, Sequence[LinkedRule], str]]
"""(policy, its rules with one action, the action of the response)."""

_POLICIES_BETWEEN_CHECKS: Final = 4
"""Policies evaluated between two checks of the clock. Static patterns never check it,
and a single one takes up to 50 ms for an object of 10 MB."""
_PLACES_ADDED_MAX: Final = 4 * READS_PLACES_MAX
"""PERF: the fields of all rules are merged on the event loop; most rules read the same
fields."""


class Step(NamedTuple):
    """One rule: its match test; its bare pattern test or None; its shared conditions.

    ``light_to``: maximum size in bytes of a review for which ``bare`` is allowed.
    ``shared``: index of preconditions shared with other rules, or -1.
    """

    matches: Callable[[Request], bool]
    bare: Callable[[Json], bool] | None
    light_to: int
    shared: int
    rule: LinkedRule


class BatchPolicy(NamedTuple):
    """One policy.

    ``start``: index of its first rule's code among all codes; ``order``: its position
    in the policy order, which is the order of responses.
    """

    policy: PolicyIR
    action: str
    start: int
    steps: list[Step]
    only_one: bool
    order: int


class Layout(NamedTuple):
    """The policies of a batch in the order of evaluation.

    ``portions``: the policies, with a check of the clock before each portion; ``pure``:
    the policies without external calls. ``recall``: the cache for the first policies,
    which are in ``recalled``; ``others``: the remaining policies. ``shared_count``:
    number of preconditions that rules share.
    """

    policies: list[BatchPolicy]
    portions: list[list[BatchPolicy]]
    pure: list[list[BatchPolicy]]
    recall: Recall | None
    recalled: list[list[BatchPolicy]]
    others: list[list[BatchPolicy]]
    shared_count: int


def lay_out(chosen: Chosen) -> Layout:
    """Return the layout; ``order`` of each policy is its position in ``chosen``."""
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
    """Return whether any rule may make an external call."""
    return any(rule.effects & (EFFECT_CLUSTER | EFFECT_REGISTRY) for rule in rules)


def _urgency(policy: PolicyIR, rules: Sequence[LinkedRule]) -> tuple[bool, bool, bool]:
    unknown = any(rule.reads is None or identifies(rule.reads) for rule in rules)
    return _asks(rules), bool(policy.namespace), unknown


def _reads(rules: Iterable[LinkedRule]) -> Reads | None:
    """Return the fields of the new object that rules read; None if unknown.

    None also if they identify the object: no two objects would have the same key.
    """
    reads = Reads()
    for rule in rules:
        if rule.reads is None or identifies(rule.reads):
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
    """Assigns numbers to the tests that rules share."""

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
        # matchConditions share it with other policies.
        owner = rule.policy.key if rule.policy.match_conditions else ""
        match = (rule.ir.match, rule.ir.exclude, rule.policy.namespace, owner)
        matches = self._matchers.setdefault(match, rule.matches)
        number = -1
        if rule.operation_only is not None:
            # Values can be lists, so records are compared by their repr.
            key = repr(rule.operation_only)
            number = self.shared.setdefault(key, len(self.shared))
        return Step(matches, rule.bare, rule.light_to, number, rule)
