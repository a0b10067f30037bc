"""The part of a policy's status about the policy that the API server enforces for it.

Room: controllers. Takes: a status, Told. Gives: the status with it.
Next: controllers/policy_status.py. May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 13; docs/behaviour/cel 8; Kyverno
pkg/controllers/admissionpolicygenerator/controller.go (updatePolicyStatus).
"""

from typing import Any, NamedTuple, Protocol

from kyverno_mp.values.jsonvalue import Json


class Told(NamedTuple):
    """Whether it was generated; otherwise why not, "" if nobody asked for it."""

    generated: bool
    message: str = ""


class Teller(Protocol):
    """Knows what to tell."""

    @property
    def told_count(self) -> int:
        """A number that grows when there is something else to tell."""

    def told(self, policy: Any, /) -> Told | None:
        """Return what to tell of a policy, None to leave its status as it is."""


class NothingTold:
    """Leaves the status of every policy as it is."""

    told_count = 0

    def told(self, _policy: object, /) -> Told | None:
        """Return None."""
        return None


def with_told(status: Json, kind: str, told: Told | None) -> Json:
    """Return the status that says so."""
    if told is None:
        return status
    if kind == "ClusterPolicy":
        return {
            **status,
            "validatingadmissionpolicy": {
                "generated": told.generated,
                "message": told.message,
            },
        }
    conditions = {**(status.get("conditionStatus") or {}), "message": told.message}
    if not told.message:
        del conditions["message"]
    return {**status, "generated": told.generated, "conditionStatus": conditions}
