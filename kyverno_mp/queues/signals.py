"""Wait for blocked signals, even in a process that is stopped and continued.

Room: queues. Takes: signals that the process has blocked, a time. Gives: SignalWait.
Next: process/supervision/supervisor.py, leader/loop.py, pool/coordinator.py. May touch:
the disposition of SIGCONT, the clock. Source: CPython Modules/signalmodule.c,
sigtimedwait.

When a stopped process continues after the time-out, CPython returns an uninitialised
record: it may contain the number of any signal, including SIGTERM. A result that
arrives too late is therefore ignored after a SIGCONT.
"""

import signal
import time
from collections.abc import Iterable
from types import FrameType
from typing import Final

_SETTLE_S_MAX: Final = 0.5
"""Lets another thread that has received the SIGCONT record it, on a busy machine, too.
Only a signal that arrives exactly at the end of a wait is delayed by it."""
_SETTLE_S: Final = 0.005


class SignalWait:
    """The signal wait of a process's main thread; create it after the fork."""

    def __init__(self) -> None:
        self._continued = False
        signal.signal(signal.SIGCONT, self._note)

    def wait(self, signals: Iterable[signal.Signals], seconds: float) -> int:
        """Return the number of a signal that arrives within the time, otherwise 0."""
        until_s = time.monotonic() + seconds
        wanted = frozenset(signals)
        self._continued = False
        found = signal.sigtimedwait(wanted, seconds)
        if found is None or found.si_signo not in wanted:
            return 0
        if time.monotonic() < until_s:
            return found.si_signo
        until_s = time.monotonic() + _SETTLE_S_MAX
        while not self._continued and time.monotonic() < until_s:
            time.sleep(_SETTLE_S)
        return 0 if self._continued else found.si_signo

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._continued = True
