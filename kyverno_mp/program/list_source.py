"""Provide compiled policies of this process as a rule source, without a snapshot.

Room: program. Takes: CompiledPolicy records and a link function. Gives: ListSource, the
RuleSource of the CLI and the tests. Next: program/engine.
Source: docs/architecture.md 3. The only look-up keys are kind and operation.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from kyverno_mp.ir.index import PolicyHeadIR, RuleHeadIR
from kyverno_mp.ir.match import FilterIR, MatchIR
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR
from kyverno_mp.limits import CANDIDATE_PLANS_MAX
from kyverno_mp.program.matching.candidates import RequestKey
from kyverno_mp.program.matching.kind import selector_matches
from kyverno_mp.program.matching.rule_ref import PolicyCandidates, RuleRef
from kyverno_mp.program.request import Request

T = TypeVar("T")


class _ListRecords:
    """Records that are already in memory."""

    def __init__(self, policies: Sequence[CompiledPolicy]) -> None:
        self._policies = policies

    def policy(self, position: int) -> PolicyIR:
        return self._policies[position].policy

    def policy_head(self, position: int) -> PolicyHeadIR:
        policy = self.policy(position)
        return PolicyHeadIR(policy.kind, policy.name, policy.namespace)

    def rule(self, position: int, number: int) -> RuleIR:
        return self._policies[position].rules[number]

    def rule_head(self, position: int, number: int) -> RuleHeadIR:
        rule = self.rule(position, number)
        return RuleHeadIR(rule.name, rule.rule_type, rule.match, rule.exclude)

    def rule_bytes(self, position: int, number: int) -> int:
        # Records are already in memory, and linking delays no request.
        del position, number
        return 1


class ListSource(Generic[T]):
    """Rules of a list of policies, linked when a request needs them."""

    def __init__(
        self,
        policies: Iterable[CompiledPolicy],
        link: Callable[[PolicyIR, RuleIR], T],
    ) -> None:
        stored = tuple(policies)
        records = _ListRecords(stored)
        self._memo: dict[RequestKey, Sequence[PolicyCandidates[T]]] = {}
        self._policy = records.policy
        self._rules = [
            [
                (rule.match, RuleRef(records, records.policy, link, position, number))
                for number, rule in enumerate(compiled.rules)
            ]
            for position, compiled in enumerate(stored)
        ]

    def candidates(self, request: Request) -> Sequence[PolicyCandidates[T]]:
        """Return the policies with rules for the request's kind and operation."""
        memo_key = (
            request.group,
            request.version,
            request.kind,
            request.subresource,
            request.operation,
        )
        selected = self._memo.get(memo_key)
        if selected is None:
            if len(self._memo) >= CANDIDATE_PLANS_MAX:
                self._memo.clear()
            selected = self._memo[memo_key] = self._select(memo_key)
        return selected

    def _select(self, request_key: RequestKey) -> Sequence[PolicyCandidates[T]]:
        selected = (
            (
                position,
                tuple(ref for match, ref in rules if _may_match(match, request_key)),
            )
            for position, rules in enumerate(self._rules)
        )
        return tuple(
            PolicyCandidates(self._policy, position, refs)
            for position, refs in selected
            if refs
        )


def _may_match(match: MatchIR, request_key: RequestKey) -> bool:
    holds = [_filter_may_match(record, request_key) for record in match.filters]
    return any(holds) and (match.mode == "any" or all(holds))


def _filter_may_match(record: FilterIR, request_key: RequestKey) -> bool:
    if record.operations and request_key[4] not in record.operations:
        return False
    return not record.kinds or any(
        selector_matches(kind, request_key[:4]) for kind in record.kinds
    )
