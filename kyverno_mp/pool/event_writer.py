"""Write the Events of a pool from one thread.

Room: pool. Takes: kube's Events. Gives: EventWriter. Next: pool/coordinator.py.
May touch: the API server through kube/events.py, one thread.
"""

import threading
from typing import Final

from kyverno_mp.kube.events import Events

_POLL_S: Final = 0.25
_COUNTS_EVERY: Final = 8
"""Polls between two flushes of the Event series counts while the queue is empty."""
_STOP_S: Final = 1.0


class EventWriter:
    """The thread that writes the events queued in ``events``."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Flush the queued Events and stop; wait a second at most."""
        self._stopping.set()
        self._thread.join(timeout=_STOP_S)

    def _run(self) -> None:
        polls = 0
        while not self._stopping.wait(_POLL_S):
            polls += 1
            if self.events.queued_count or polls % _COUNTS_EVERY == 0:
                self.events.flush()
        self.events.flush()
