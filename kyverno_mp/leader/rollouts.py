"""Publish how far the gradual enforcement of each policy has come to the workers.

Room: leader. Takes: RolloutStates from their controller. Gives: the values of the
segment ``rollouts``. Next: leader/cluster.py publishes them. May touch: nothing outside
its arguments. Source: docs/gradual-enforcement.md.
"""

from collections.abc import Callable, Mapping

from kyverno_mp.snapshot.rollouts import RolloutState, values_of

_Wake = Callable[[], None]


class PublishedRollouts:
    """The newest states; the controllers' thread sets them, the loop publishes."""

    def __init__(self) -> None:
        self._current: Mapping[str, RolloutState] = {}
        self._polled: Mapping[str, RolloutState] | None = None
        self._wake: _Wake | None = None
        self._values: Mapping[str, bytes] = {}
        self.is_set = False
        """Whether the states are known. Before that, workers keep those of an earlier
        leader."""

    def set(self, states: Mapping[str, RolloutState]) -> None:
        """Publish at the next poll, which follows at once."""
        if self.is_set and states == self._current:
            return
        self._current, self.is_set = dict(states), True
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
