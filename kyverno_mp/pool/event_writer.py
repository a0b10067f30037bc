"""Write the Events of a pool from one thread.

Room: pool. Takes: kube's Events. Gives: EventWriter. Next: pool/coordinator.py.
May touch: the API server through kube/events.py, one thread.
"""

import threading
from typing import Final

from kyverno_mp.kube.events import Events

_COUNTS_S: Final = 2.0
"""The time between two flushes of the counts of series."""
_RETRY_S: Final = 0.25
_STOP_S: Final = 1.0


class EventWriter:
    """The thread that writes the events queued in ``events``."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._woken = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        events.on_submit = self._woken.set

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Flush the queued Events and stop; wait a second at most."""
        self._is_stopping = True
        self._woken.set()
        self._thread.join(timeout=_STOP_S)

    def _run(self) -> None:
        while not self._is_stopping:
            self._woken.wait(self._pause_s())
            self._woken.clear()
            self.events.flush()
        self.events.flush()

    def _pause_s(self) -> float | None:
        """Return the time to the next flush that no event begins; None: without end."""
        if self.events.queued_count:
            return _RETRY_S
        return _COUNTS_S if self.events.has_series else None
