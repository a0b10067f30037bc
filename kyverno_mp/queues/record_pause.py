"""Wait until other processes may have appended records to their journals.

Room: queues. Takes: the bell that writers ring. Gives: RecordPause. Next:
leader/triggers/writer.py, leader/results/writer.py, leader/denials.py,
controllers/admission_events.py. May touch: one named pipe, the clock.
Source: docs/architecture.md 3 (audit queue and journal).

Writers ring after a record, and the arbiter after the death of a worker, which may lie
between a record and its ring.
"""

import threading
from collections.abc import Callable
from typing import Final

from kyverno_mp.snapshot.bell import Bell

_OFTEN_S: Final = 0.02
"""Users wait for what a record causes. PERF: for ever, it would cost 1 % of a core."""
_RARELY_S: Final = 0.1
"""Without a bell."""
_UNRUNG_S: Final = 2.0
"""A writer and its arbiter may die at once, after a record and before its ring."""


class RecordPause:
    """The pauses of a thread that reads journals."""

    def __init__(self, bell: Callable[[], Bell | None], often: int = 0) -> None:
        """``bell`` creates what writers ring; None: poll instead.

        ``often``: how many looks in a row without a record precede a wait for the bell.
        Writers that ring only for the first record of an empty journal ring less then.
        """
        self._new_bell = bell
        self._often = self._left = often
        self._bell: Bell | None = None
        self._is_begun = False
        self._stopping = threading.Event()

    def finds(self) -> None:
        """Look often again, because there was a record."""
        self._left = self._often

    def stop(self) -> None:
        """End the pauses, the present one at once."""
        self._stopping.set()
        self.wake()

    def wake(self) -> None:
        """End the wait for the bell; any thread may call it."""
        if self._bell is not None:
            self._bell.ring()

    def is_last(
        self, pause_s: float | None = None, ring_s_max: float = _UNRUNG_S
    ) -> bool:
        """Wait until there may be something to read; return whether to stop.

        ``pause_s``: until something known is tried again, whoever rings.
        ``ring_s_max``: the longest wait for a ring.
        """
        if not self._is_begun:
            # In the reader's thread. What was appended before is read first.
            self._bell, self._is_begun = self._new_bell(), True
            return self._stopping.is_set()
        if pause_s is None and self._left:
            self._left -= 1
            pause_s = _OFTEN_S
        if pause_s is not None or self._bell is None:
            rarely_s = min(_RARELY_S, ring_s_max)
            return self._stopping.wait(rarely_s if pause_s is None else pause_s)
        if not self._stopping.is_set():
            self._bell.wait(ring_s_max)
            self._bell.clear()
        return self._stopping.is_set()
