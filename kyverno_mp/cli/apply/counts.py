"""Count results for the summary of ``apply``.

Room: cli. Takes: Responses. Gives: Counts. Next: apply.
Source: docs/behaviour/cli 9.
"""

from typing import Final

import msgspec

from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.apply.stages.admission_policies import VALIDATING
from kyverno_mp.program import result
from kyverno_mp.values.kubernetes.policy_kinds import (
    CLUSTER_POLICY,
    GENERATING_POLICY,
    MUTATING_POLICY,
    POLICY_KINDS,
)

_COUNTS_SKIPS: Final = frozenset(
    name
    for row in POLICY_KINDS
    if row not in {CLUSTER_POLICY, MUTATING_POLICY, GENERATING_POLICY}
    for name in row.names
)
_CHANGING: Final = (*MUTATING_POLICY.names, *GENERATING_POLICY.names)


class Counts(msgspec.Struct):
    """Results of a run by outcome."""

    passed: int = 0
    failed: int = 0
    warned: int = 0
    errors: int = 0
    skipped: int = 0

    def add(self, response: Response, *, audit_warn: bool) -> None:
        """Count the results of one response."""
        kind = response.policy.kind
        if kind in _CHANGING:
            self._add_cel(response)
            return
        self.passed += len(response.passed)
        self.skipped += len(response.skipped)
        # KYVERNO: ``scored`` and --audit-warn have no effect on policies in CEL. Skips
        # of the API server's own policies are not counted (docs/behaviour/cli 9).
        counts_skips = kind in _COUNTS_SKIPS
        is_plain = counts_skips or response.policy.kind == VALIDATING
        for rule in response.results:
            if rule.status == result.PASS:
                self.passed += 1
            elif is_plain:
                self.failed += rule.status == result.FAIL
                self.errors += rule.status == result.ERROR
                self.skipped += rule.status == result.SKIP and counts_skips
            elif rule.status == result.FAIL:
                if not response.policy.scored or (
                    audit_warn and response.action == "Audit"
                ):
                    self.warned += 1
                else:
                    self.failed += 1
            elif rule.status == result.ERROR:
                self.errors += 1
            elif rule.status == result.WARNING:
                self.warned += 1
            else:
                self.skipped += 1

    def include(self, other: "Counts") -> None:
        """Add the counts of other objects."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def _add_cel(self, response: Response) -> None:
        """Count the results of a policy in CEL that mutates or generates.

        KYVERNO: mutations count twice, but mutations of existing objects do not count.
        Only passes and failures of a GeneratingPolicy count (docs/behaviour/cli 9).
        """
        mutates = response.policy.kind in MUTATING_POLICY.names
        if mutates and response.patched is None:
            return
        for rule in response.results:
            times = 2 if mutates else 1
            self.passed += times * (rule.status == result.PASS)
            self.failed += times * (rule.status == result.FAIL)
            if mutates:
                self.errors += times * (rule.status == result.ERROR)
                self.skipped += times * (rule.status == result.SKIP)

    def summary(self) -> str:
        """Return the last line that ``apply`` prints."""
        return (
            f"\npass: {self.passed}, fail: {self.failed}, warn: {self.warned},"
            f" error: {self.errors}, skip: {self.skipped} \n"
        )
