"""Reconcile the Events and statuses of GlobalContextEntries.

Room: controllers. Takes: this pod's state of each entry, an Election. Gives: Events
from every replica, statuses from the lease holder. Next: none.
May touch: the API server through kube, the clock. Source:
docs/behaviour/controllers 1.5, 9.1.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kyverno_mp.controllers.global_context_events import GlobalContextEvents
from kyverno_mp.controllers.global_context_status import GlobalContextStatuses, State
from kyverno_mp.kube.lease import Election
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result

NAME: Final = "globalcontext-controller"
ALL: Final = "all"
"""The only key; unchanged states cost nothing."""
_RESYNC_S: Final = 10.0
_FOLLOW_S: Final = 1.0
"""A replica without the lease checks again after this time."""
_DISTANCE_S: Final = 1.0
"""The interval at which constantly changing states are written."""


class GlobalContextController:
    """The Events and statuses of entries; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        statuses: GlobalContextStatuses,
        events: GlobalContextEvents,
        election: Election,
        states: Callable[[], Mapping[str, State]],
        clock: Clock,
    ) -> None:
        self._statuses = statuses
        self._events = events
        self._election = election
        self._states = states
        self._clock = clock
        self._next_s = float("-inf")

    def reconcile(self, _key: str) -> Result:
        """Write changed states. Raises: LeaseLost."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return Result(after_s=self._next_s - now_s)
        self._next_s = now_s + _DISTANCE_S
        states = self._states()
        self._events.report(states)
        if not self._election.holds():
            self._statuses.forget()
            return Result(after_s=_FOLLOW_S)
        self._statuses.write(states, self._clock.now())
        return Result(after_s=_RESYNC_S)
