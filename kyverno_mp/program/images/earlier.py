"""Read the image outcomes that an earlier webhook path of the request has recorded.

Room: program.images. Takes: the changed object, the policies of earlier paths. Gives:
an ImageRecord. Next: program/plans/mutation_plan.
Source: docs/behaviour/images 2.7 (one record for all policies); docs/differences.md.

The API server calls our paths in sequence: first those with failurePolicy Fail, then
those with Ignore. The outcomes of a rule of an earlier path were written by that rule,
because the earlier path has dropped any annotation from the user.
"""

from collections.abc import Sequence
from typing import TypeAlias

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import IMAGE_RECORD_ENTRIES_MAX
from kyverno_mp.program.action import ENFORCE, response_action
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.images.record import STATUSES, ImageRecord, ScopedRecord
from kyverno_mp.program.images.rule import LinkedImageRule
from kyverno_mp.program.images.selection import is_among
from kyverno_mp.program.rule_gate import matches_at_own_cost

_Policies: TypeAlias = Sequence[tuple[PolicyIR, Sequence[LinkedImageRule]]]


def recorded_before(policies: _Policies, context: RequestContext) -> ImageRecord:
    """Return the outcomes that these policies' rules can have written.

    SAFETY: if this takes too many steps, nothing is returned, and images have to be
    verified. Raises: DeadlinePassed, Preempted.
    """
    image_record = ImageRecord()
    if not policies:
        return image_record
    record = ScopedRecord(context.request.object)
    context.runtime.begin_policy(None, is_tenant=False)
    try:
        for policy, rules in policies:
            _take(image_record, record, policy, rules, context)
    except BudgetExceeded:
        return ImageRecord()
    return image_record


def _take(
    image_record: ImageRecord,
    record: ScopedRecord,
    policy: PolicyIR,
    rules: Sequence[LinkedImageRule],
    context: RequestContext,
) -> None:
    request, runtime = context.request, context.runtime
    action = response_action(
        policy, policy.rule_actions, request.namespace, request.namespace_labels
    )
    for rule in rules:
        outcomes = record.of(rule.key)
        if not 0 < len(outcomes) <= IMAGE_RECORD_ENTRIES_MAX:
            continue
        if not matches_at_own_cost(rule.matches, policy, request, runtime):
            continue
        if action != ENFORCE:
            image_record.audited.add(rule.key)
        for block in rule.verification.blocks:
            runtime.charge(len(outcomes) * len(block.references))
            for reference, status in outcomes.items():
                if (
                    type(status) is str
                    and status in STATUSES
                    and is_among(reference, block.references)
                ):
                    image_record.add(rule.key, reference, status)
