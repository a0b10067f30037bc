"""Claim a run in the status of its policy, and write its result.

Room: cleanup. Takes: a policy's key. Gives: Statuses. A claim is one conditional write,
so that only one lease holder gets a run. Next: cleanup/controller.py. May touch: the
API server through kube/apply.py.
Source: docs/behaviour/controllers 7 (lastExecutionTime); docs/pools.md 5.

Upstream writes lastExecutionTime after the run; here it is written before the first
deletion, with a condition of reason Running. A lease holder that finds this condition
resumes the run, limited to objects that existed when it began. A run without deletions
writes the status only once, at its end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from kyverno_mp.cleanup.policy import (
    CONDITION,
    RUNNING,
    CompiledPolicy,
    StoredPolicy,
    stored_policy,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.limits import CLEANUP_MESSAGE_CHARACTERS_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CEL_GROUP

_STATUS: Final = "status"
_BEGUN: Final = "deleting matching objects"
_NOT_READY: Final = frozenset({"Invalid", "NeverDue"})
"""The condition reasons of a policy that never runs."""
_PERMITTED: Final = "RBACPermissionsGranted"
_SCHEDULED: Final = "Policy is scheduled."
_TRUE: Final = "True"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a due run. ``began_s``: Unix seconds.

    ``is_resumed``: it began earlier and did not end.
    """

    began_s: int
    is_resumed: bool


@dataclass(frozen=True, slots=True)
class End:
    """The result of a run, for the condition."""

    is_done: bool
    reason: str
    message: str


class Statuses:
    """Writes the statuses of clean-up policies."""

    def __init__(self, objects: Objects, now: Callable[[], datetime]) -> None:
        """``objects``: its writes check the lease."""
        self._objects = objects
        self._now = now

    def find_due(self, policy: CompiledPolicy) -> Claim | None:
        """Return the due run, or None if none is due any more.

        Raises: DependencyError.
        """
        stored = policy.stored
        raw = self._objects.find(stored.resource, stored.key)
        return None if raw is None else self._claim_of(policy, raw)

    def begin(self, policy: CompiledPolicy, claim: Claim) -> bool:
        """Claim a run before its first deletion; False if another replica has it.

        Raises: DependencyError, LeaseLost.
        """
        begun = End(is_done=False, reason=RUNNING, message=_BEGUN)
        return self._write_first(policy, begun, claim)

    def end(
        self, policy: CompiledPolicy, end: End, claim: Claim, *, begun: bool
    ) -> None:
        """Write the result of a run; ``begun``: the run was claimed with ``begin``.

        If a later run has been claimed, the status stays unchanged.
        Raises: DependencyError, LeaseLost.
        """
        if not begun:
            self._write_first(policy, end, claim)
            return
        stored = policy.stored

        def edit(fresh: StoredPolicy, raw: Json) -> Json | None:
            if (fresh.uid, fresh.last_s) != (stored.uid, claim.began_s):
                return None
            return self._with(raw, end, None)

        self._change(stored, edit)

    def refuse(self, stored: StoredPolicy, end: End) -> None:
        """Write why a policy cannot run. Raises: DependencyError, LeaseLost."""

        def edit(fresh: StoredPolicy, raw: Json) -> Json | None:
            written = self._with(raw, end, None) if fresh.uid == stored.uid else raw
            return None if written == raw else written

        self._change(stored, edit)

    def accept(self, stored: StoredPolicy, missing: Sequence[str]) -> None:
        """Write that a DeletingPolicy is scheduled; ``missing``: missing permissions.

        Upstream's clean-up controller writes no condition at all.
        Raises: DependencyError, LeaseLost.
        """

        def edit(fresh: StoredPolicy, raw: Json) -> Json | None:
            if fresh.uid != stored.uid:
                return None
            written = self._with_permissions(raw, missing)
            return None if written == raw else written

        self._change(stored, edit)

    def _with_permissions(self, raw: Json, missing: Sequence[str]) -> Json:
        status = dict(raw.get("status") or {})
        holder = status.get("conditionStatus") or {}
        state = "False" if missing else _TRUE
        condition = self._condition(
            raw,
            _PERMITTED,
            (state, "Failed" if missing else "Succeeded"),
            "; ".join(missing) or _SCHEDULED,
            holder,
        )
        # A new version of a policy that could not run may be able to run.
        conditions = [
            condition
            for condition in _others(raw, holder, _PERMITTED)
            if condition.get("type") != CONDITION
            or condition.get("reason") not in _NOT_READY
        ]
        conditions.append(condition)
        changed = {**holder, "conditions": conditions, "ready": _is_ready(conditions)}
        return {**raw, "status": {**status, "conditionStatus": changed}}

    def _write_first(self, policy: CompiledPolicy, end: End, claim: Claim) -> bool:
        """Write the time and state of a run if it is still due."""
        accepted = [False]

        def edit(fresh: StoredPolicy, raw: Json) -> Json | None:
            del fresh
            new_claim = self._claim_of(policy, raw)
            accepted[0] = new_claim is not None and not new_claim.is_resumed
            return self._with(raw, end, claim.began_s) if accepted[0] else None

        return self._change(policy.stored, edit) and accepted[0]

    def _claim_of(self, policy: CompiledPolicy, raw: Json) -> Claim | None:
        fresh = stored_policy(policy.stored.resource, msgspec.json.encode(raw))
        if fresh is None or fresh.version != policy.stored.version:
            return None
        now_s = int(self._now().timestamp())
        due_s = policy.due_s(fresh)
        if due_s is not None and due_s <= now_s:
            return Claim(now_s, is_resumed=False)
        if fresh.is_running and fresh.last_s is not None:
            return Claim(fresh.last_s, is_resumed=True)
        return None

    def _change(
        self,
        stored: StoredPolicy,
        edit: Callable[[StoredPolicy, Json], Json | None],
    ) -> bool:
        """Edit the status of the stored policy; return False if it does not exist."""

        def decided(raw: Json) -> Json | None:
            fresh = stored_policy(stored.resource, msgspec.json.encode(raw))
            return None if fresh is None else edit(fresh, raw)

        changed = self._objects.change(stored.resource, stored.key, decided, _STATUS)
        return changed is not None

    def _with(self, raw: Json, end: End, last_s: int | None) -> Json:
        """Return the policy with this result in its status."""
        status = dict(raw.get("status") or {})
        if last_s is not None:
            status["lastExecutionTime"] = _time_text(
                datetime.fromtimestamp(last_s, UTC)
            )
        is_cel = str(raw.get("apiVersion", "")).startswith(f"{CEL_GROUP}/")
        holder = (status.get("conditionStatus") or {}) if is_cel else status
        state = _TRUE if end.is_done else "False"
        condition = self._condition(
            raw, CONDITION, (state, end.reason), end.message, holder
        )
        conditions = [*_others(raw, holder, CONDITION), condition]
        changed = {**holder, "conditions": conditions}
        if not is_cel:
            return {**raw, "status": {**status, **changed}}
        changed["ready"] = _is_ready(conditions)
        return {**raw, "status": {**status, "conditionStatus": changed}}

    def _condition(
        self, raw: Json, name: str, state: tuple[str, str], message: str, holder: Json
    ) -> Json:
        """Return a condition; ``state``: its status and reason."""
        conditions = holder.get("conditions") or ()
        before: Json = next(
            (condition for condition in conditions if condition.get("type") == name), {}
        )
        return {
            "type": name,
            "status": state[0],
            "reason": state[1],
            "message": cut(message),
            "lastTransitionTime": (
                before["lastTransitionTime"]
                if before.get("status") == state[0] and "lastTransitionTime" in before
                else _time_text(self._now())
            ),
            "observedGeneration": raw["metadata"].get("generation", 0),
        }


def _others(raw: Json, holder: Json, name: str) -> list[Json]:
    """Return the conditions of other types.

    One about an earlier version of the policy, such as the result of its last run,
    loses its generation: health checks such as Argo CD's wait while a condition has an
    earlier one, which could be until the next run.
    """
    current = raw["metadata"].get("generation", 0)
    return [
        {
            key: value
            for key, value in condition.items()
            if key != "observedGeneration" or value == current
        }
        for condition in holder.get("conditions") or ()
        if condition.get("type") != name
    ]


def _is_ready(conditions: Iterable[Json]) -> bool:
    """Return whether a policy is valid and has the permissions to run."""
    return not any(
        (condition.get("type") == CONDITION and condition.get("reason") in _NOT_READY)
        or (condition.get("type") == _PERMITTED and condition.get("status") != _TRUE)
        for condition in conditions
    )


def cut(message: str) -> str:
    """Truncate a message to the length that a condition may have."""
    if len(message) <= CLEANUP_MESSAGE_CHARACTERS_MAX:
        return message
    return message[: CLEANUP_MESSAGE_CHARACTERS_MAX - 3] + "..."


def _time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
