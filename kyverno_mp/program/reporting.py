"""Decide which results of reviews travel to the reports, and which a scan derives.

Room: program. Takes: PolicyIR, names and statuses of rules; the operator's choices.
Gives: Reporting. Next: program/plans/plan.py, webhook/results/sink.py.
May touch: nothing outside its arguments.
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
"""Label of policies that are not reported, whatever its value."""
_WORDS: Final = {
    result.PASS: "pass",
    result.FAIL: "fail",
    result.WARNING: "warn",
    result.ERROR: "error",
    result.SKIP: "skip",
}


_FIRST: Final = (result.FAIL, result.ERROR, result.WARNING, result.PASS, result.SKIP)


def decisive(results: Iterable[RuleResult]) -> list[RuleResult]:
    """Return one result of each rule: the first of the worst.

    A rule about images has one for each image, and a report has one row for each rule.
    KYVERNO: the row is that of the first image, which hides that another one failed
    (docs/differences.md).
    """
    found: dict[str, RuleResult] = {}
    for one in results:
        known = found.get(one.rule)
        if known is None or _FIRST.index(one.status) < _FIRST.index(known.status):
            found[one.rule] = one
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Reporting:
    """The operator's choices.

    ``types`` and ``words``: as in enableReporting and allowedResults. ``scans``:
    existing objects are evaluated in the background.
    """

    types: frozenset[str]
    words: frozenset[str]
    scans: bool = True

    def reports(self, policy: PolicyIR, rule_type: str) -> bool:
        """Return whether results of such rules of a policy are reported at all."""
        if rule_type not in self.types:
            return False
        return not any(name == DISABLED for name, _ in policy.labels)

    def travels(self, policy: PolicyIR, rule: str) -> bool:
        """Return whether only a review finds the results of a validate rule.

        All others follow from the object, so whoever writes the reports derives them.
        Not of a rule that is not reported either.
        """
        if self.scans and policy.background and rule not in policy.review_rules:
            return False
        return self.reports(policy, VALIDATE)

    def has(self, status: str) -> bool:
        """Return whether results with this status are reported."""
        return _WORDS.get(status) in self.words

    def travelling(self, responses: Iterable[PolicyResponse]) -> list[PolicyResponse]:
        """Return the responses with what travels alone, without empty ones."""
        found = []
        for response in responses:
            policy = response.policy
            # PERF: nothing of most policies travels.
            if self.scans and policy.background and not policy.review_rules:
                continue
            limited = self._limited(response)
            if limited.results or limited.passed or limited.skipped:
                found.append(limited)
        return found

    def _limited(self, response: PolicyResponse) -> PolicyResponse:
        policy = response.policy
        passed, skipped = self.has(result.PASS), self.has(result.SKIP)
        return PolicyResponse(
            policy,
            [
                one
                for one in response.results
                if self.has(one.status) and self.travels(policy, one.rule)
            ],
            response.action,
            self._names(policy, response.passed) if passed else (),
            self._names(policy, response.skipped) if skipped else (),
        )

    def _names(self, policy: PolicyIR, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if self.travels(policy, name))
