"""Scan existing objects for changes that MutatingPolicies would still make.

Room: reports. Takes: the segment of MutatingPolicies. Gives: MUTATING_SCAN, and
functions for the plan. Next: reports/scan/evaluator.py, reports/plan.py.
Source: docs/behaviour/cel 10.1 (background report); docs/behaviour/controllers 6.4.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.cel_policies.scans import is_scanned, scanned_results
from kyverno_mp.program.reporting import MUTATE
from kyverno_mp.reports.plan import mutating_policies_of
from kyverno_mp.reports.policies.cel_rules import CelScan
from kyverno_mp.snapshot.cel_segments import MutatingSegment


def _scanned_of(
    segment: MutatingSegment, types: frozenset[str]
) -> Iterator[MutatingPolicyIR]:
    for ir in mutating_policies_of(segment) if MUTATE in types else ():
        if is_scanned(ir):
            yield ir


MUTATING_SCAN: Final = CelScan(
    _scanned_of, LinkedMutatingPolicy, scanned_results, result.MUTATION
)
