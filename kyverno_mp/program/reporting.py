"""Decide which results of reviews are sent to reports, and which a scan reproduces.

Room: program. Takes: PolicyIR, names and statuses of rules; the operator's settings.
Gives: Reporting. Next: program/plans/plan.py, webhook/results/sink.py.
Source: docs/behaviour/controllers 2.10, 6.5; docs/behaviour/engine 8.5;
docs/pools.md 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.result import PolicyResponse, RuleResult

VALIDATE: Final = "validate"
MUTATE: Final = "mutate"
MUTATE_EXISTING: Final = "mutateExisting"
GENERATE: Final = "generate"
IMAGE_VERIFY: Final = "imageVerify"
DISABLED: Final = "reports.kyverno.io/disabled"
"""Label of policies that are not reported; its value does not matter."""
_WORDS: Final = {
    result.PASS: "pass",
    result.FAIL: "fail",
    result.WARNING: "warn",
    result.ERROR: "error",
    result.SKIP: "skip",
}


_FIRST: Final = (result.FAIL, result.ERROR, result.WARNING, result.PASS, result.SKIP)


def decisive(results: Iterable[RuleResult]) -> list[RuleResult]:
    """Return one result per rule: the first with the worst status.

    An image rule has one result per image, and a report has one row per rule.
    KYVERNO: the row shows the first image, which hides failures of other images
    (docs/differences.md).
    """
    by_rule: dict[str, RuleResult] = {}
    for rule_result in results:
        earlier = by_rule.get(rule_result.rule)
        if earlier is None or _FIRST.index(rule_result.status) < _FIRST.index(
            earlier.status
        ):
            by_rule[rule_result.rule] = rule_result
    return list(by_rule.values())


@dataclass(frozen=True, slots=True)
class Reporting:
    """The operator's settings for reports.

    ``types`` and ``words`` are the values of enableReporting and allowedResults.
    ``scans``: existing objects are evaluated in the background.
    """

    types: frozenset[str]
    words: frozenset[str]
    scans: bool = True

    def reports(self, policy: PolicyIR, rule_type: str) -> bool:
        """Return whether a policy's results of this rule type are reported at all."""
        if rule_type not in self.types:
            return False
        return not any(name == DISABLED for name, _ in policy.labels)

    def travels(self, policy: PolicyIR, rule: str) -> bool:
        """Return whether a validate rule's results must be sent to reports.

        A scan reproduces all other results from the object. The results of a rule that
        is not reported are not sent, either.
        """
        if self.scans and policy.background and rule not in policy.review_rules:
            return False
        return self.reports(policy, VALIDATE)

    def has(self, status: str) -> bool:
        """Return whether results with this status are reported."""
        return _WORDS.get(status) in self.words

    def travelling(self, responses: Iterable[PolicyResponse]) -> list[PolicyResponse]:
        """Return the responses, reduced to the results to send; omit empty ones."""
        limited_responses = []
        for response in responses:
            policy = response.policy
            # PERF: most policies have no results to send.
            if self.scans and policy.background and not policy.review_rules:
                continue
            limited = self._limited(response)
            if limited.results or limited.passed or limited.skipped:
                limited_responses.append(limited)
        return limited_responses

    def _limited(self, response: PolicyResponse) -> PolicyResponse:
        policy = response.policy
        passed, skipped = self.has(result.PASS), self.has(result.SKIP)
        return PolicyResponse(
            policy,
            [
                rule_result
                for rule_result in response.results
                if self.has(rule_result.status)
                and self.travels(policy, rule_result.rule)
            ],
            response.action,
            self._names(policy, response.passed) if passed else (),
            self._names(policy, response.skipped) if skipped else (),
        )

    def _names(self, policy: PolicyIR, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if self.travels(policy, name))
