"""Say in a policy's status that reviews without proof were not carried out for it.

Room: controllers. Takes: a policy as stored. Gives: with_unproved, the policy with the
condition; without_outdated, which removes it after a change of the policy.
Next: leader/triggers/writer.py.
Source: docs/SECURITY.md (reviews without proof).

SAFETY: whoever sends such reviews causes one write for each generation of a policy.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CEL_GROUP

TYPE: Final = "ReviewsProved"
_MESSAGE: Final = (
    "Rules were not run for reviews whose caller did not prove to be the API server,"
    " because the cluster does not show what they need: users, old objects, deleted or"
    " changed objects, subresources. kyverno_mp_errors_total counts them as"
    " webhook.trigger_unproved. A change of this policy removes this condition."
)


def with_unproved(policy: Json, now: datetime) -> Json | None:
    """Return the policy with the condition; None if it has it."""
    status = policy.get("status") or {}
    generation = policy["metadata"].get("generation") or 0
    in_cel = str(policy.get("apiVersion")).startswith(f"{CEL_GROUP}/")
    parent = status.get("conditionStatus") or {} if in_cel else status
    conditions = without_outdated(parent.get("conditions") or (), generation)
    if any(one.get("type") == TYPE for one in conditions):
        return None
    condition = {
        "type": TYPE,
        "status": "False",
        "reason": "NoProof",
        "message": _MESSAGE,
        "observedGeneration": generation,
        "lastTransitionTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    parent = {**parent, "conditions": [*conditions, condition]}
    return {
        **policy,
        "status": {**status, "conditionStatus": parent} if in_cel else parent,
    }


def without_outdated(conditions: Iterable[Json], generation: int) -> list[Json]:
    """Return the conditions without one about an earlier version of the policy."""
    return [
        condition
        for condition in conditions
        if condition.get("type") != TYPE
        or condition.get("observedGeneration") == generation
    ]
