"""Tie the lifetimes of processes together, on Linux with prctl(2).

Room: process. Takes: nothing. Gives: die_with_parent, adopt_orphans, children_of.
May touch: prctl(2), /proc, a thread. Source: prctl(2) PR_SET_PDEATHSIG,
PR_SET_CHILD_SUBREAPER.

Elsewhere, a thread looks for the parent once a second, and orphans go to process 1.
"""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S: Final = 1.0


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Receive signal ``number`` when ``parent``, which forked this process, dies.

    If the parent died before the call, this process ends at once.
    """
    if not _prctl(_PR_SET_PDEATHSIG, int(number)):
        threading.Thread(
            target=_await_death, args=(parent, number), name="parent", daemon=True
        ).start()
    if os.getppid() != parent:
        os._exit(0)


def _await_death(parent: int, number: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent dies, like process 1.

    The supervisor can thus reap a killed arbiter's workers, even outside a container.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> list[int]:
    """Return the ids of a single-threaded process's children."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        import psutil  # imported late: Linux has the file

        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []
    return [int(word) for word in text.split()]


def _prctl(option: int, value: int) -> bool:
    """Call prctl; return whether the system has it. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "prctl", None)
    if call is None:
        return False
    if call(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True
