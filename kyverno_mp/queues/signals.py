"""Wait for blocked signals, even in a process that is stopped and continued.

Room: queues. Takes: signals that the process has blocked, a time. Gives: await_signal,
waker. Next: process/supervision/supervisor.py, leader/loop.py, pool/coordinator.py.
May touch: the clock. Source: sigtimedwait(2); CPython Modules/signalmodule.c.

Every wait for a signal is one of these, so no signal is lost: the kernel removes a
pending signal only in the call that returns its number. CPython's function makes the
same call. But if a stop interrupts it and its time has passed, it returns a record that
nothing has filled: the number of any signal, or of none.
"""

import ctypes
import errno
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import Final

WAKE: Final = signal.SIGURG
"""The signal by which another thread ends a wait; ignored outside a wait."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_sigtimedwait: Final = getattr(_LIBC, "sigtimedwait", None)
_SIGSET_BYTES: Final = 128
"""Linux's C libraries have a bit for each of 1024 signals; macOS needs 4 bytes."""
_LOOK_S: Final = 0.05


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def await_signal(signals: Collection[signal.Signals], seconds: float = math.inf) -> int:
    """Return the number of a signal that arrives within the time, otherwise 0.

    All threads of the process have blocked the signals.
    """
    until_s = time.monotonic() + seconds
    if _sigtimedwait is None:
        return _await_elsewhere(frozenset(signals), until_s)
    sigset = ctypes.create_string_buffer(_SIGSET_BYTES)
    _LIBC.sigemptyset(sigset)
    for number in signals:
        _LIBC.sigaddset(sigset, number)
    while True:
        # With no time left, the call only takes a pending signal.
        left = _timespec(until_s)
        number = _sigtimedwait(sigset, None, left and ctypes.byref(left))
        if number > 0:
            return int(number)
        code = ctypes.get_errno()
        if code == errno.EAGAIN:
            return 0
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def waker() -> Callable[[], None]:
    """Return a function by which other threads end this thread's wait for WAKE."""
    thread = threading.get_ident()
    return lambda: signal.pthread_kill(thread, WAKE)


def _timespec(until_s: float) -> _Timespec | None:
    """Return the time until ``until_s``; None is a wait without an end."""
    if math.isinf(until_s):
        return None
    left_s = max(0.0, until_s - time.monotonic())
    whole_s = int(left_s)
    return _Timespec(whole_s, int((left_s - whole_s) * 1e9))


def _await_elsewhere(signals: frozenset[signal.Signals], until_s: float) -> int:
    """Look at the pending signals now and then: macOS has no wait with a limit."""
    if signal.SIGCHLD in signals and signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL:
        # Without a handler, macOS discards it, blocked or not.
        signal.signal(signal.SIGCHLD, _ignore)
    while True:
        if pending := signals & signal.sigpending():
            return int(signal.sigwait(pending))
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return 0
        time.sleep(min(left_s, _LOOK_S))


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing."""
