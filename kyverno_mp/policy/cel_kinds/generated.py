"""Determine whether the API server enforces a policy itself.

Room: policy. Takes: the status of a policy. Gives: the answer in the status.
Next: leader, controllers.
Source: docs/behaviour/controllers 13; docs/behaviour/cel 8; docs/behaviour/engine 6
(CEL).

KYVERNO: webhooks and scans skip such a policy, and its rules have no results.
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import ROW_OF

_OF_RULES: Final = "validatingadmissionpolicy"
_GENERATED: Final = "generated"


def is_generated(status: Json) -> bool:
    """Return whether the status says that an admission policy was generated."""
    if type(status) is not dict:
        return False
    holder = status.get(_OF_RULES)
    if type(holder) is not dict:
        holder = status
    return holder.get(_GENERATED) is True


def kept_status(kind: str, status: Json) -> Json:
    """Return the part of a status that affects evaluation, None if there is none.

    For namespaced policies it is always None, because nothing is generated from them.
    """
    row = ROW_OF.get(kind)
    if row is None or not row.native or kind != row.name or not is_generated(status):
        return None
    generated: Json = {_GENERATED: True}
    return generated if row.is_in_cel else {_OF_RULES: generated}
