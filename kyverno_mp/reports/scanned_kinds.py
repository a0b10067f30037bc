"""List how scans evaluate the policies of each kind in CEL.

Room: reports. Takes: segments of policies. Gives: RECORD_OF; MAIN_SCANS and IMAGE_SCAN,
the kinds of each lane; reported_in, is_disabled. Next: plan.py,
reports/policies/cel_rules.py.
Source: docs/behaviour/controllers 6.3 to 6.6; docs/behaviour/cel 10.1 (background
report); Kyverno pkg/controllers/report/utils/scanner.go.

Policies of kinds without a scan are reported, too: their rows stay as long as they are
in force.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.cel_sources import EXECUTED
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.reporting import DISABLED
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy import scans as validating
from kyverno_mp.program.validating_policy.reads import expressions_of
from kyverno_mp.program.validating_policy.scope import Facts, names_any
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.values.kubernetes.policy_kinds import (
    OF_TYPE,
    REVIEWED_CEL_KINDS,
    PolicyKind,
)
from kyverno_mp.values.patches.json_equal import same

_NOT_APPLIED: Final = "mutation is not applied"
InCel = Mapping[str, CelSegment[Any] | None]
"""The policies in CEL by segment; None: unknown, so the rows of the kind stay."""
RECORD_OF: Final[Mapping[str, type[Any]]] = {
    row.segment: EXECUTED[row].record for row in REVIEWED_CEL_KINDS
}
"""The records of each segment that is reported."""


def _verdicts(linked: Any, facts: Facts, shared: Shared) -> Iterator[RuleResult | None]:
    for answer in linked.evaluate(facts, shared):
        yield answer.result


def _is_scanned_mutation(ir: MutatingPolicyIR) -> bool:
    # KYVERNO: a policy that mutates existing objects is not scanned; the background
    # pool reports its results.
    return ir.policy.background and not ir.mutates_existing


def _is_derived_mutation(ir: MutatingPolicyIR) -> bool:
    return (
        _is_scanned_mutation(ir) and ir.mutates_request and validating.is_of_objects(ir)
    )


def _mutations(
    linked: Any, facts: Facts, shared: Shared
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


class CelScan(NamedTuple):
    """What differs between the kinds. The first two functions take a record."""

    kind: PolicyKind
    is_scanned: Callable[[Any], bool]
    is_derived: Callable[[Any], bool]
    """Whether a scan produces all results that a review produces."""
    type_of_errors: str
    results: Callable[[Any, Facts, Shared], Iterable[RuleResult | None]] = _verdicts
    """Return the results of a linked policy for an object."""

    def link(self, record: Any) -> Any:
        """Return the linked policy."""
        return EXECUTED[self.kind].linked(record)


def _is_scanned_image(ir: ImageValidatingPolicyIR) -> bool:
    # Unlike upstream, namespaced ones are scanned, too (docs/differences.md).
    return ir.policy.background and not ir.is_json


def _is_derived_image(ir: ImageValidatingPolicyIR) -> bool:
    bodies, expressions = ir.bodies, expressions_of(ir)
    return validating.is_of_creations(body.constraints for body in bodies) and not any(
        names_any(expression, validating.OF_REQUESTS) for expression in expressions
    )


MAIN_SCANS: Final = (
    CelScan(
        OF_TYPE["validate"],
        validating.is_scanned,
        validating.is_derived,
        result.VALIDATION,
    ),
    CelScan(
        OF_TYPE["mutate"],
        _is_scanned_mutation,
        _is_derived_mutation,
        result.MUTATION,
        _mutations,
    ),
)
IMAGE_SCAN: Final = CelScan(
    OF_TYPE["verifyImages"],
    _is_scanned_image,
    _is_derived_image,
    result.IMAGE_VERIFY,
)
"""Its results need the images of a review, which scan/images.py adds."""


def reported_in(segment: CelSegment[Any] | None) -> Iterator[Any]:
    """Yield the records of the policies that are reported."""
    if segment is not None:
        for position in range(segment.policy_count):
            ir = segment.record(position)
            if not is_disabled(ir.policy):
                yield ir


def is_disabled(policy: PolicyIR) -> bool:
    """Return whether the policy is excluded from reports."""
    return any(name == DISABLED for name, _ in policy.labels)
