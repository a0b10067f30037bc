"""Determine whether the API server enforces a policy itself.

Room: policy. Takes: the status of a policy. Gives: the answer in the status.
Next: leader, controllers. May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 13; docs/behaviour/cel 8; docs/behaviour/engine 6
(CEL).

KYVERNO: webhooks and scans skip such a policy, and its rules have no results.
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CEL_POLICY_KINDS, CLUSTER_POLICY

_OF_CLUSTER_POLICIES: Final = "validatingadmissionpolicy"
_GENERATED: Final = "generated"
_NATIVE_IN_CEL: Final = [row.name for row in CEL_POLICY_KINDS if row.native]


def is_generated(status: Json) -> bool:
    """Return whether the status says that an admission policy was generated."""
    if type(status) is not dict:
        return False
    holder = status.get(_OF_CLUSTER_POLICIES)
    if type(holder) is not dict:
        holder = status
    return holder.get(_GENERATED) is True


def kept_status(kind: str, status: Json) -> Json:
    """Return the part of a status that affects evaluation, None if there is none.

    For namespaced policies it is always None, because nothing is generated from them.
    """
    if kind == CLUSTER_POLICY.name and is_generated(status):
        return {_OF_CLUSTER_POLICIES: {_GENERATED: True}}
    if kind in _NATIVE_IN_CEL and is_generated(status):
        return {_GENERATED: True}
    return None
