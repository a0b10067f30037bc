"""Report in a policy's status whether the API server enforces the policy natively.

Room: controllers. Takes: a status, GeneratedStatus. Gives: the status with it.
Next: controllers/policy_status.py.
Source: docs/behaviour/controllers 13; docs/behaviour/cel 8; Kyverno
pkg/controllers/admissionpolicygenerator/controller.go (updatePolicyStatus).
"""

from typing import Any, NamedTuple, Protocol

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import ROW_OF


class GeneratedStatus(NamedTuple):
    """Whether an admission policy was generated, and if not, why.

    ``message`` is empty if the policy did not request generation.
    """

    generated: bool
    message: str = ""


class GeneratedStatuses(Protocol):
    """The source of the statuses of generated admission policies."""

    @property
    def status_version(self) -> int:
        """A number that grows with each change of a status."""

    def status_of(self, policy: Any, /) -> GeneratedStatus | None:
        """Return the status for a policy, None to leave the written one unchanged."""


class NoGeneratedStatuses:
    """Leaves the status of every policy unchanged."""

    status_version = 0

    def status_of(self, _policy: object, /) -> GeneratedStatus | None:
        """Return None."""
        return None


def with_generated(status: Json, kind: str, generated: GeneratedStatus | None) -> Json:
    """Return the policy's status with the fields about generation set."""
    if generated is None:
        return status
    if not ROW_OF[kind].is_in_cel:
        return {
            **status,
            "validatingadmissionpolicy": {
                "generated": generated.generated,
                "message": generated.message,
            },
        }
    conditions = {**(status.get("conditionStatus") or {}), "message": generated.message}
    if not generated.message:
        del conditions["message"]
    return {**status, "generated": generated.generated, "conditionStatus": conditions}
