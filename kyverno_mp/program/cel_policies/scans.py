"""Decide which MutatingPolicies a scan evaluates, and return their results.

Room: program. Takes: MutatingPolicyIR; a linked policy and an object. Gives:
is_scanned, is_derived, scanned_results. Next:
reports/scanned_kinds.py. May touch: external systems only through CEL ports.
Source: docs/behaviour/controllers 6.4, 6.6; docs/behaviour/cel 10.1 (background
report); Kyverno pkg/controllers/report/utils/scanner.go.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.scans import is_of_objects
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.values.patches.json_equal import same

_NOT_APPLIED: Final = "mutation is not applied"


def is_scanned(ir: MutatingPolicyIR) -> bool:
    """Return whether scans evaluate the policy.

    KYVERNO: a policy that mutates existing objects is not scanned; the background pool
    reports its results.
    """
    return ir.policy.background and not ir.mutates_existing


def is_derived(ir: MutatingPolicyIR) -> bool:
    """Return whether a scan can reproduce every result of a review."""
    return is_scanned(ir) and ir.mutates_request and is_of_objects(ir)


def scanned_results(
    linked: LinkedMutatingPolicy, facts: Facts, shared: Shared
) -> Iterator[RuleResult | None]:
    """Yield the results; a mutation that would change the object is a failure."""
    answers = list(linked.evaluate(facts, shared))
    changed = next(
        (each.patched for each in reversed(answers) if each.patched is not None), None
    )
    is_applied = changed is None or same(changed, facts.request.object)
    for answer in answers:
        scanned = answer.result
        if (
            is_applied
            or scanned is None
            or scanned.status != result.PASS
            or scanned.exceptions
        ):
            yield scanned
        else:
            yield replace(scanned, status=result.FAIL, message=_NOT_APPLIED)
