"""Collect the rows of one object as its policies are evaluated.

Room: reports. Takes: results of policies. Gives: FoundRows, whose ``evaluated`` is part
of an Answer. Next: reports/scan/evaluator.py, reports/scan/images.py. May touch: the
log.
Source: docs/behaviour/controllers 6.5.
"""

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from kyverno_mp.errors import Error
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import REPORT_MESSAGE_CHARACTERS_MAX
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values, withheld
from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.fingerprints import (
    fingerprint_of,
    key_of,
    key_of_names,
    plain_row,
)
from kyverno_mp.results.entries import (
    KYVERNO,
    Row,
    merge_key_of,
    place_of,
    public_row_of,
)

_log = logging.getLogger(__name__)
DEFECT: Final = "internal error, see the log of the evaluator"


class FoundRows:
    """The results for one object so far. ``statuses``: the reported ones."""

    def __init__(self, kind: str, statuses: frozenset[str]) -> None:
        self._kind = kind
        self._statuses = statuses
        self._rows: list[tuple[tuple[str, ...], bytes, bytes]] = []
        """The place in a report, the row, its fingerprint."""
        self._exceptions: list[tuple[bytes, tuple[str, ...]]] = []
        self._waiting: list[bytes] = []
        self._problem = ""
        self.is_outage = False
        """Whether rows are temporary errors: a registry or the API server was away."""

    def add(self, policy: PolicyIR, results: Iterable[RuleResult]) -> None:
        """Add the results of a policy."""
        for rule in results:
            if rule.status not in self._statuses:
                continue
            try:
                row = _bounded(public_row_of(policy, rule, self._kind))
                plain = plain_row(row)
            except Exception as error:  # noqa: BLE001 - the other rules have rows
                _log.error(
                    "rule %s of policy %s has no row (%s)",
                    *(rule.rule, policy.key, type(error).__name__),
                    exc_info=None if hides_values(self._kind) else error,
                )
                self._wait(policy, [rule.rule], DEFECT)
                continue
            self._rows.append((place_of(row), plain, fingerprint_of(row, plain)))
            if rule.exceptions and row.source == KYVERNO:
                self._exceptions.append((key_of(row), tuple(rule.exceptions)))

    def wait(self, policy: PolicyIR, rules: Iterable[str], error: Error) -> None:
        """Record that a policy cannot be evaluated now."""
        hides = hides_values(self._kind)
        self._wait(policy, rules, withheld(error.code) if hides else error.message)

    def _wait(self, policy: PolicyIR, rules: Iterable[str], problem: str) -> None:
        self._waiting += [key_of_names(merge_key_of(policy, rule)) for rule in rules]
        self._problem = problem

    def evaluated(self) -> Evaluated:
        """Return all results."""
        rows = sorted(self._rows)
        return Evaluated(
            b"".join(fingerprint for _, _, fingerprint in rows),
            tuple(plain for _, plain, _ in rows),
            self._problem,
            tuple(self._exceptions),
            tuple(self._waiting),
            self.is_outage,
        )


def _bounded(row: Row) -> Row:
    most = REPORT_MESSAGE_CHARACTERS_MAX
    if len(row.message) <= most:
        return row
    return msgspec.structs.replace(row, message=f"{row.message[:most]}...")
