"""Tie the lifetimes of processes together with Linux's prctl(2).

Room: process. Takes: nothing. Gives: die_with_parent, adopt_orphans, children_of.
May touch: prctl(2), /proc. Source: prctl(2) PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER.
"""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Receive signal ``number`` when ``parent``, which forked this process, dies.

    If the parent died before the call, this process ends at once.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(0)


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
        return []
    return [int(word) for word in text.split()]


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
