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
from typing import Any, Final, NamedTuple

from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.cel_policies import scans as mutating
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.reporting import DISABLED
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy import scans as validating
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.reads import expressions_of
from kyverno_mp.program.validating_policy.scope import Facts, names_any
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
    PolicyKind,
)

InCel = Mapping[str, CelSegment[Any] | None]
"""The policies in CEL by segment; None: unknown, so the rows of the kind stay."""
RECORD_OF: Final[Mapping[str, type[Any]]] = {
    VALIDATING_POLICY.segment: ValidatingPolicyIR,
    MUTATING_POLICY.segment: MutatingPolicyIR,
    IMAGE_VALIDATING_POLICY.segment: ImageValidatingPolicyIR,
    GENERATING_POLICY.segment: GeneratingPolicyIR,
}
"""The records of each segment that is reported."""


def _verdicts(
    linked: LinkedValidatingPolicy, facts: Facts, shared: Shared
) -> Iterator[RuleResult | None]:
    for answer in linked.evaluate(facts, shared):
        yield answer.result


class CelScan(NamedTuple):
    """What differs between the kinds. The first two functions take a record."""

    kind: PolicyKind
    is_scanned: Callable[[Any], bool]
    is_derived: Callable[[Any], bool]
    """Whether a scan produces all results that a review produces."""
    link: Callable[[Any], Any]
    type_of_errors: str
    results: Callable[[Any, Facts, Shared], Iterable[RuleResult | None]] = _verdicts
    """Return the results of a linked policy for an object."""


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
        VALIDATING_POLICY,
        validating.is_scanned,
        validating.is_derived,
        LinkedValidatingPolicy,
        result.VALIDATION,
    ),
    CelScan(
        MUTATING_POLICY,
        mutating.is_scanned,
        mutating.is_derived,
        LinkedMutatingPolicy,
        result.MUTATION,
        mutating.scanned_results,
    ),
)
IMAGE_SCAN: Final = CelScan(
    IMAGE_VALIDATING_POLICY,
    _is_scanned_image,
    _is_derived_image,
    LinkedImagePolicy,
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
