"""Say in a policy's status and in an Event that its gradual enforcement fell back.

Room: controllers. Takes: the state of a rollout. Gives: the condition
``EnforcementProgressing`` while the policy is out of force. Next: the API server.
May touch: the API server through kube/apply.py, the clock, the log.
Source: docs/gradual-enforcement.md.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.errors import KubeConflict, KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventInfo, Reference
from kyverno_mp.kube.policy_resources import resource_of
from kyverno_mp.kube.resource import Resource
from kyverno_mp.snapshot.rollouts import FELL_BACK, RolloutState
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CEL_GROUP, POLICY_KINDS

_log = logging.getLogger(__name__)
TYPE: Final = "EnforcementProgressing"
REASON: Final = "EnforcementFellBack"
_CONTROLLER: Final = "rollouts-controller"
_ACTION: Final = "Rollback"
_MESSAGE: Final = (
    "{}: the share of the last completed step is in force until somebody resumes or"
    " aborts the rollout (kyverno-mp rollout)."
)
_RESOURCES: Final[Mapping[str, Resource]] = {
    stored.kind: resource_of(stored)
    for row in POLICY_KINDS
    if row.segment
    for stored in row.stored
}


class RolloutStatuses:
    """Writes the conditions, and submits the Events."""

    def __init__(self, objects: Objects, submit: Callable[[EventInfo], bool]) -> None:
        """``objects``: writes that only the lease holder may do."""
        self._objects = objects
        self._submit = submit

    def tell(self, name: str, state: RolloutState) -> bool:
        """Say that a policy fell back, or no longer; one rejection delays no other.

        Return False if it must be said again. Raises: DependencyError.
        """
        kind, *key = name.split("_")
        resource = _RESOURCES.get(kind)
        if resource is None:
            return True
        names = (key[0] if resource.namespaced else "", key[-1])
        message = _MESSAGE.format(state.reason) if state.reason else ""
        now = datetime.now(UTC)
        try:
            policy = self._objects.change(
                resource, names, lambda raw: with_message(raw, message, now), "status"
            )
        except (KubeRefused, KubeConflict) as error:
            if error.code == "kube.forbidden":
                raise
            _log.warning("status of policy %s: %s", name, error.message)
            return False
        if policy is None or not message:
            return True
        uid = str(policy["metadata"].get("uid") or "")
        api_version, namespace = resource.api_version, names[0]
        self._submit(
            EventInfo(
                regarding=Reference(api_version, kind, names[1], namespace, uid),
                reason=REASON,
                action=_ACTION,
                note=message,
                controller=_CONTROLLER,
                # After a restart, the same Event is not written again.
                at_ns=state.since_s * 10**9,
                seed=f"{name} {state.since_s}",
            )
        )
        return True


def with_message(policy: Json, message: str, now: datetime) -> Json | None:
    """Return the policy with the condition, "" removes it; None if nothing changes."""
    status = policy.get("status") or {}
    in_cel = str(policy.get("apiVersion")).startswith(f"{CEL_GROUP}/")
    parent = status.get("conditionStatus") or {} if in_cel else status
    before = list(parent.get("conditions") or ())
    ours = [one.get("message") for one in before if one.get("type") == TYPE]
    if ours == [message] * bool(message):
        return None
    conditions = [one for one in before if one.get("type") != TYPE]
    if message:
        conditions.append(
            {
                "type": TYPE,
                "status": "False",
                "reason": FELL_BACK,
                "message": message,
                "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )
    parent = {**parent, "conditions": conditions}
    return {
        **policy,
        "status": {**status, "conditionStatus": parent} if in_cel else parent,
    }
