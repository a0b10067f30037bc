"""Read the image outcomes that an earlier webhook path of the request has recorded.

Room: program.images. Takes: the changed object, the policies of earlier paths. Gives:
outcomes by reference. Next: program/plans/mutation_plan. May touch: nothing outside its
arguments.
Source: docs/behaviour/images 2.7 (one record for all policies); docs/differences.md.

The API server calls our paths in sequence: first those with failurePolicy Fail, then
those with Ignore. The record for an image that a rule of an earlier path selects was
written by that rule, because the earlier path has dropped any annotation from the user.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import (
    IMAGE_RECORD_CHARACTERS_MAX,
    IMAGE_RECORD_ENTRIES_MAX,
)
from kyverno_mp.program import result
from kyverno_mp.program.action import ENFORCE, response_action
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.images.outcomes import ANNOTATION, vouched_by_tenants
from kyverno_mp.program.images.rule import LinkedImageRule
from kyverno_mp.program.images.selection import is_among
from kyverno_mp.program.rule_gate import matches_at_own_cost
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json
from kyverno_mp.values.jsonvalue import Json

_STATUSES: Final = frozenset({result.PASS, result.FAIL, result.SKIP})
_Policies: TypeAlias = Sequence[tuple[PolicyIR, Sequence[LinkedImageRule]]]


class Recorded(NamedTuple):
    """Outcomes by reference, for enforcing and for auditing policies."""

    enforced: dict[str, str]
    audited: dict[str, str]
    vouched: set[str]
    """References whose outcome was recorded by at least one cluster policy."""


def recorded_before(policies: _Policies, context: RequestContext) -> Recorded:
    """Return the outcomes that these policies' rules can have written.

    SAFETY: if this takes too many steps, nothing is returned, and images have to be
    verified. Raises: DeadlinePassed, Preempted.
    """
    found = Recorded({}, {}, set())
    annotations = _annotations(context.request.object) if policies else {}
    record = _record(annotations)
    if not record:
        return found
    tenants = frozenset(vouched_by_tenants(annotations))
    context.runtime.begin_policy(None, is_tenant=False)
    try:
        for policy, rules in policies:
            # SAFETY: an outcome recorded only by namespaced policies does not count for
            # cluster policies.
            own = record if policy.namespace else _without(record, tenants)
            _take(found, own, policy, rules, context)
    except BudgetExceeded:
        return Recorded({}, {}, set())
    return found


def _take(
    found: Recorded,
    record: Mapping[str, str],
    policy: PolicyIR,
    rules: Sequence[LinkedImageRule],
    context: RequestContext,
) -> None:
    request, runtime = context.request, context.runtime
    action = response_action(
        policy, policy.rule_actions, request.namespace, request.namespace_labels
    )
    known = found.enforced if action == ENFORCE else found.audited
    for rule in rules:
        if not matches_at_own_cost(rule.matches, policy, request, runtime):
            continue
        for block in rule.verification.blocks:
            runtime.charge(len(record) * len(block.references))
            for text, status in record.items():
                if is_among(text, block.references):
                    known[text] = status
                    if not policy.namespace:
                        found.vouched.add(text)


def _without(record: Mapping[str, str], left: Collection[str]) -> Mapping[str, str]:
    return {key: one for key, one in record.items() if key not in left}


def _annotations(resource: Mapping[str, Json]) -> Mapping[str, Json]:
    metadata = resource.get("metadata")
    found = metadata.get("annotations") if type(metadata) is dict else None
    return found if type(found) is dict else {}


def _record(annotations: Mapping[str, Json]) -> dict[str, str]:
    """Return the record of an object, or {} if we cannot have written it."""
    text = annotations.get(ANNOTATION)
    if type(text) is not str or len(text) > IMAGE_RECORD_CHARACTERS_MAX:
        return {}
    try:
        given = decode_json(text)
    except JsonInvalid:
        return {}
    if type(given) is not dict or len(given) > IMAGE_RECORD_ENTRIES_MAX:
        return {}
    return {key: one for key, one in given.items() if one in _STATUSES}
