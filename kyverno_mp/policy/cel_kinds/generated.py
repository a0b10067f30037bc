"""Return whether the API server itself enforces a policy.

Room: policy. Takes: a decoded policy. Gives: the answer that its status has.
Next: leader, controllers. May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 13; docs/behaviour/cel 8; docs/behaviour/engine 6
(CEL).

KYVERNO: such a policy is in no webhook and no scan, and its rules yield no result.
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json

_OF_CLUSTER_POLICIES: Final = "validatingadmissionpolicy"
_GENERATED: Final = "generated"


def is_generated(status: Json) -> bool:
    """Return whether a status tells that a policy of the API server was generated."""
    if type(status) is not dict:
        return False
    told = status.get(_OF_CLUSTER_POLICIES)
    if type(told) is not dict:
        told = status
    return told.get(_GENERATED) is True


def kept_status(kind: str, status: Json) -> Json:
    """Return the part of a status that affects evaluation, None if there is none.

    Namespaced policies never have one: nothing is generated from them.
    """
    if kind == "ClusterPolicy" and is_generated(status):
        return {_OF_CLUSTER_POLICIES: {_GENERATED: True}}
    if kind in ("ValidatingPolicy", "MutatingPolicy") and is_generated(status):
        return {_GENERATED: True}
    return None
