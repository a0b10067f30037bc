"""Compare CPU time with a yardstick of the same run; only for costs without a count.

Takes: work. Gives: its CPU time, as on the machine where the limits were set. Next: the
tests that CONTRIBUTING.md lists. May touch: the CPU clock of the thread, which stands
while other programs run.
"""

import time
from collections.abc import Callable
from typing import Final

_REFERENCE_S: Final = 0.004
"""Time of ``_reference`` on the machine where the limits were set."""


def _reference() -> float:
    """Return the time of a fixed amount of Python work."""
    known = {str(key): key for key in range(100)}
    names = list(known)
    began = time.thread_time()
    total = 0
    for _ in range(500):
        for name in names:
            total += known[name]
    return time.thread_time() - began


def slowness() -> float:
    """Return how much slower the machine is now than when the limits were set."""
    return max(1.0, min(_reference() for _ in range(3)) / _REFERENCE_S)


def cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU time of the work, divided by the machine's slowness."""
    before = slowness()
    began = time.thread_time()
    work()
    taken = time.thread_time() - began
    return taken / max(before, slowness())
