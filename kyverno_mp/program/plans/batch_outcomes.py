"""Create the responses of a batch, once per outcome.

Room: program. Takes: the codes of all rules, and the messages of failed rules.
Gives: Outcomes, whose responses are shared by requests. Next: program/plans/batch.py.
Source: docs/behaviour/engine 0.5.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import OUTCOME_MEMO_ENTRIES_MAX, OUTCOME_MEMO_RESPONSES_MAX
from kyverno_mp.program.bodies.outcome import (
    EXPLAIN,
    FAILED,
    PASSED,
    SKIPPED,
    UNMATCHED,
)
from kyverno_mp.program.plans.batch_layout import BatchPolicy
from kyverno_mp.program.result import PolicyResponse, RuleResult, SharedResponses

_Key = tuple[bytes, tuple[str, ...]]
"""All codes of a run, and the messages of failed bare patterns."""


class Partial(NamedTuple):
    """A policy with rules that need messages; numbers in ``rules`` are code indexes."""

    policy: PolicyIR
    action: str
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    rules: tuple[int | RuleResult, ...]


_Found = SharedResponses | tuple[PolicyResponse | Partial, ...]


class Outcomes:
    """The responses of one batch by outcome, created on first use."""

    __slots__ = ("_count", "_known", "_policies")

    def __init__(self, policies: Sequence[BatchPolicy]) -> None:
        self._policies = policies
        self._known: dict[_Key, _Found] = {}
        self._count = 0
        """Responses in ``_known``."""

    def shared_responses(
        self, codes: bytes, messages: tuple[str, ...]
    ) -> SharedResponses:
        """Return the responses of an outcome without rules that need a message."""
        responses = self.known(codes, messages)
        assert isinstance(responses, SharedResponses)
        return responses

    def known(self, codes: bytes, messages: tuple[str, ...]) -> _Found:
        """Return the responses for the codes, from the cache if possible."""
        key = (codes, messages)
        shared = self._known.get(key)
        if shared is None:
            outcomes = self._outcomes(codes, messages)
            self._count += len(outcomes)
            is_full = len(self._known) >= OUTCOME_MEMO_ENTRIES_MAX
            if is_full or self._count > OUTCOME_MEMO_RESPONSES_MAX:
                self._known.clear()
                self._count = len(outcomes)
            responses = [item for item in outcomes if isinstance(item, PolicyResponse)]
            is_whole = len(responses) == len(outcomes)
            shared = SharedResponses(responses) if is_whole else outcomes
            self._known[key] = shared
        return shared

    def _outcomes(
        self, codes: bytes, messages: tuple[str, ...]
    ) -> tuple[PolicyResponse | Partial, ...]:
        ordered: list[tuple[int, PolicyResponse | Partial]] = []
        remaining = iter(messages)
        for policy in self._policies:
            policy_codes = codes[policy.start : policy.start + len(policy.steps)]
            if any(code != UNMATCHED for code in policy_codes):
                ordered.append(
                    (policy.order, _outcome(policy, policy_codes, remaining))
                )
        ordered.sort(key=lambda item: item[0])
        return tuple([item for _, item in ordered])


def _outcome(
    policy: BatchPolicy, codes: Sequence[int], messages: Iterator[str]
) -> PolicyResponse | Partial:
    """Return the response for the codes; consumes its messages from ``messages``."""
    names: dict[int, list[str]] = {PASSED: [], SKIPPED: []}
    rules: list[int | RuleResult] = []
    for position, (step, code) in enumerate(
        zip(policy.steps, codes, strict=True), policy.start
    ):
        if code in names:
            names[code].append(step.rule.ir.name)
        elif code == EXPLAIN:
            rules.append(position)
        elif code == FAILED:
            constant = step.rule.failure
            rules.append(
                step.rule.failed(next(messages) if constant is None else constant)
            )
    passed, skipped = tuple(names[PASSED]), tuple(names[SKIPPED])
    results = [rule for rule in rules if isinstance(rule, RuleResult)]
    if len(results) < len(rules):
        return Partial(policy.policy, policy.action, passed, skipped, tuple(rules))
    return PolicyResponse(policy.policy, results, policy.action, passed, skipped)


def completed(policy: Partial, early: Mapping[int, list[RuleResult]]) -> PolicyResponse:
    """Return the response of a policy with rules that needed messages."""
    results: list[RuleResult] = []
    for rule in policy.rules:
        if isinstance(rule, RuleResult):
            results.append(rule)
        else:
            results += early[rule]
    return PolicyResponse(
        policy.policy, results, policy.action, policy.passed, policy.skipped
    )
