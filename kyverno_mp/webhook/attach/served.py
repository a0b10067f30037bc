"""Compute which generation of policies a worker serves with all that belongs to it.

Room: webhook. Takes: the control page, the generations in use. Gives: ServedPolicies.
Next: webhook/start.py reports it.
Source: docs/architecture.md 3 (generations); leader/policy_segments.py.

The leader publishes the policies in CEL first and the others last, and the generation
of the last stands for all of them: Ready means that every worker reports it. So a
worker reports it after it has attached the other segments, too.
"""

from collections.abc import Mapping

from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.values.kubernetes.policy_kinds import CEL_SEGMENTS


class ServedPolicies:
    """The generation of all policies that one worker serves."""

    def __init__(self, control: ControlPage) -> None:
        self._control = control
        self._served = 0
        self._awaited: dict[str, int] = {}
        """The generations that make the next report true. Later changes do not move
        them, so that consecutive changes delay no report."""

    def of_all(self, used: Mapping[str, int]) -> int:
        """Return the generation; ``used``: the generations in use, by segment."""
        for _ in range(2):
            if not self._awaited:
                newest = self._control.generation(POLICIES)
                if newest <= self._served:
                    break
                # Read afterwards: the leader publishes the others first.
                others = {name: self._control.generation(name) for name in CEL_SEGMENTS}
                self._awaited = {POLICIES: newest, **others}
            if any(used[name] < least for name, least in self._awaited.items()):
                break
            self._served = self._awaited[POLICIES]
            self._awaited = {}
        return self._served
