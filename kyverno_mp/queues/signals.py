"""Wait for blocked signals, also in a process that is stopped and continued.

Room: queues. Takes: signals that the process has blocked, a time. Gives: SignalWait.
Next: process/supervision/supervisor.py, leader/loop.py, pool/coordinator.py. May touch:
the disposition of SIGCONT, the clock. Source: CPython Modules/signalmodule.c,
sigtimedwait.

When a stopped process continues after the time-out, CPython returns an uninitialised
record: its number may be that of any signal, SIGTERM included. After a SIGCONT, a
result that came too late is therefore ignored.
"""

import signal
import time
from collections.abc import Iterable
from types import FrameType
from typing import Final

_SETTLE_S: Final = 0.001
"""Another thread may have received the SIGCONT and not recorded it yet."""


class SignalWait:
    """Waits in the main thread of one process; create it after the fork."""

    def __init__(self) -> None:
        self._continued = False
        signal.signal(signal.SIGCONT, self._note)

    def wait(self, signals: Iterable[signal.Signals], seconds: float) -> int:
        """Return the number of a signal that came within the time, else 0."""
        until_s = time.monotonic() + seconds
        self._continued = False
        found = signal.sigtimedwait(frozenset(signals), seconds)
        if found is None:
            return 0
        if time.monotonic() < until_s:
            return found.si_signo
        time.sleep(_SETTLE_S)
        return 0 if self._continued else found.si_signo

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._continued = True
