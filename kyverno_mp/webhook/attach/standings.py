"""Read how far the gradual enforcement of each policy has come in one worker.

Room: webhook. Takes: the follower of the segment ``rollouts``. Gives: Standings for
webhook/review/gradual.py. Next: webhook/start.py wires it.
Source: docs/gradual-enforcement.md.
"""

from typing import Final

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.gradual import Standing, first_step
from kyverno_mp.snapshot.data import DataSegment
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.rollouts import state_of

_FULLY: Final = Standing(100)


class PublishedStandings:
    """The standings in the newest generation."""

    def __init__(self, follower: Follower[DataSegment]) -> None:
        self._follower = follower

    def __call__(self, policy: PolicyIR) -> Standing:
        """Return the standing of a policy; the first step without a state.

        SAFETY: a state that cannot be read enforces fully.
        """
        rollout, segment = policy.rollout, self._follower.current()
        if rollout is None:
            return _FULLY
        if segment is None:
            return _FULLY if self._follower.is_behind else first_step(policy)
        try:
            state = state_of(segment, policy)
        except SnapshotUnusable:
            return _FULLY
        if state is None or state.plan != rollout.plan:
            return first_step(policy)
        return Standing(
            state.percent(rollout), state.completed_percent(rollout), state.run
        )
