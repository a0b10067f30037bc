"""Encode and decode how far the gradual enforcement of each policy has come.

Room: snapshot. Takes: RolloutStates. Gives: the values of the data segment
``rollouts``, and the state of a policy. Next: leader/rollouts.py publishes them,
webhook/attach/standings.py reads them, controllers/rollouts.py stores them.
Source: docs/gradual-enforcement.md; docs/architecture.md 3 (shared data segments).
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.rules import PolicyIR, RolloutIR
from kyverno_mp.snapshot.data import DataSegment, encode_value
from kyverno_mp.values.records import RecordType

ROLLOUTS: Final = "rollouts"
"""Name of the segment."""
PROGRESSING: Final = "Progressing"
PAUSED: Final = "Paused"
ABORTED: Final = "Aborted"
COMPLETED: Final = "Completed"
FELL_BACK: Final = "FellBack"
PHASES: Final = (PROGRESSING, PAUSED, ABORTED, COMPLETED, FELL_BACK)
Phase: TypeAlias = Literal["Progressing", "Paused", "Aborted", "Completed", "FellBack"]


class RolloutState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one policy's rollout; ``plan``: the RolloutIR to which it belongs.

    ``since_s``: when the step began, or when it fell back, in seconds since the Unix
    epoch. ``reason``: why it fell back; kept until the policy's status tells no more.
    """

    plan: str
    phase: Phase
    step: Annotated[int, msgspec.Meta(ge=0)] = 0
    since_s: int = 0
    reason: str = ""

    @property
    def run(self) -> str:
        """Return what identifies a step in progress, "" if none is."""
        if self.phase not in (PROGRESSING, PAUSED):
            return ""
        return f"{self.plan}.{self.step}.{self.since_s}"

    def completed_percent(self, rollout: RolloutIR) -> int:
        """Return the share of the last completed step."""
        if self.phase == COMPLETED:
            return self.percent(rollout)
        steps = rollout.steps[: self.step]
        return 0 if self.phase == ABORTED or not steps else steps[-1]

    def percent(self, rollout: RolloutIR) -> int:
        """Return the share in force."""
        if self.phase == ABORTED:
            return 0
        if self.phase == FELL_BACK:
            return self.completed_percent(rollout)
        return rollout.steps[min(self.step, len(rollout.steps) - 1)]


_STATE: Final = RecordType(RolloutState)


def name_of(policy: PolicyIR) -> str:
    """Return the key of a policy in the segment and in the stored object.

    K8S: keys of a ConfigMap contain no slashes, and names no underscores.
    """
    return f"{policy.kind}_{policy.key.replace('/', '_')}"


def values_of(states: Mapping[str, RolloutState]) -> Mapping[str, bytes]:
    """Return the content of the segment."""
    return {
        name: encode_value(msgspec.to_builtins(state)) for name, state in states.items()
    }


def state_of(segment: DataSegment, policy: PolicyIR) -> RolloutState | None:
    """Return the state of a policy, None without one. Raises: SnapshotUnusable."""
    value = segment.get(name_of(policy))
    if value is None:
        return None
    try:
        return _STATE.convert(value)
    except msgspec.ValidationError as error:
        raise SnapshotUnusable(
            "snapshot.record", "the state of a rollout cannot be read"
        ) from error
