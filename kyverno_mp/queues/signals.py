"""Wait for blocked signals, even in a process that is stopped and continued.

Room: queues. Takes: signals that the process has blocked, a time. Gives: SignalWait.
Next: process/supervision/supervisor.py, leader/loop.py, pool/coordinator.py. May touch:
the disposition of SIGCONT, the clock. Source: CPython Modules/signalmodule.c,
sigtimedwait.

When a stopped process continues after the time-out, CPython returns an uninitialised
record: it may contain the number of any signal, including SIGTERM. A result that
arrives too late is therefore ignored after a SIGCONT, unless the parent has died: that
SIGTERM is sent once.
"""

import os
import signal
import time
from collections.abc import Iterable
from types import FrameType
from typing import Final

_SETTLE_S_MAX: Final = 0.5
"""Lets another thread that has received the SIGCONT record it, on a busy machine, too.
Only a signal that arrives exactly at the end of a wait is delayed by it."""
_SETTLE_S: Final = 0.005
_LOOK_S: Final = 0.05


class SignalWait:
    """The signal wait of a process's main thread; create it after the fork."""

    def __init__(self, parent: int = 0) -> None:
        """``parent``: the process whose death sends SIGTERM; 0: none."""
        self._parent = parent
        self._continued = False
        signal.signal(signal.SIGCONT, self._note)

    def wait(self, signals: Iterable[signal.Signals], seconds: float) -> int:
        """Return the number of a signal that arrives within the time, otherwise 0."""
        until_s = time.monotonic() + seconds
        wanted = frozenset(signals)
        self._continued = False
        timed = getattr(signal, "sigtimedwait", None)
        if timed is None:
            return _wait_elsewhere(wanted, until_s)
        found = timed(wanted, seconds)
        if found is None or found.si_signo not in wanted:
            return 0
        number = int(found.si_signo)
        if time.monotonic() < until_s:
            return number
        until_s = time.monotonic() + _SETTLE_S_MAX
        while not self._continued and time.monotonic() < until_s:
            time.sleep(_SETTLE_S)
        if not self._continued:
            return number
        is_orphan = self._parent != 0 and os.getppid() != self._parent
        return int(signal.SIGTERM) if is_orphan and signal.SIGTERM in wanted else 0

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._continued = True


def _wait_elsewhere(wanted: frozenset[signal.Signals], until_s: float) -> int:
    """Look at the pending signals now and then: macOS has no wait with a limit."""
    if signal.SIGCHLD in wanted and signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL:
        # Without a handler, macOS discards it, blocked or not.
        signal.signal(signal.SIGCHLD, _ignore)
    while True:
        if pending := wanted & signal.sigpending():
            return int(signal.sigwait(pending))
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return 0
        time.sleep(min(left_s, _LOOK_S))


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing."""
