"""Publish how far the gradual enforcement of each policy has come to the workers.

Room: leader. Takes: RolloutStates from their controller, exceeded budgets from
leader/denials.py. Gives: the values of the segment ``rollouts``.
Next: leader/cluster.py publishes them.
Source: docs/gradual-enforcement.md.
"""

import threading
from collections.abc import Callable, Mapping

from kyverno_mp.snapshot.denials import Excess, fallen_back
from kyverno_mp.snapshot.rollouts import RolloutState, values_of

_Wake = Callable[[], None]


class PublishedRollouts:
    """The newest states; other threads set them, the leader's loop publishes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: Mapping[str, RolloutState] = {}
        self._excesses: Mapping[str, Excess] = {}
        self._current: Mapping[str, RolloutState] = {}
        self._polled: Mapping[str, RolloutState] | None = None
        self._wake: _Wake | None = None
        self._values: Mapping[str, bytes] = {}
        self.is_set = False
        """Whether the states are known. Before that, workers keep those of an earlier
        leader."""

    def states(self) -> Mapping[str, RolloutState]:
        """Return the stored states."""
        return self._states

    def set(self, states: Mapping[str, RolloutState]) -> None:
        """Publish at the next poll, which follows at once."""
        with self._lock:
            if self.is_set and states == self._states:
                return
            self._states = dict(states)
            self._combine()
            self.is_set = True

    def fall_back(self, excesses: Mapping[str, Excess]) -> None:
        """Publish that policies fall back, before the stored states say so."""
        with self._lock:
            if excesses != self._excesses:
                self._excesses = dict(excesses)
                self._combine()

    def _combine(self) -> None:
        self._current = fallen_back(self._states, self._excesses)
        if self._wake is not None:
            self._wake()

    def on_change(self, wake: _Wake) -> None:
        """Call ``wake`` when there is something to publish."""
        self._wake = wake

    def poll(self) -> bool:
        """Return whether the values changed since the last call."""
        current = self._current
        if not self.is_set or current is self._polled:
            return False
        self._polled, self._values = current, values_of(current)
        return True

    def values(self) -> Mapping[str, bytes]:
        """Return the values of the last poll."""
        return self._values
