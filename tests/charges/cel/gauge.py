"""Measure what a piece of work takes for each step and byte that it was charged.

The contract: a step stands for at most half a microsecond, work is charged before it is
done, and between two charges little time passes, so that an evaluation can be stopped
or moved. Time is the thread's own, and how slow the machine is at the moment is
measured beside it, so that neighbours do not fail the tests.
"""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kyverno_mp.errors import BudgetExceeded, InputError
from kyverno_mp.expr.cel.values import CelFailed
from kyverno_mp.limits import EXPRESSION_BYTES_MAX, HEAVY_STEPS, POLICY_STEPS_MAX

STEP_S = 0.5e-6
SLACK = 2.5
"""How much more than its nominal time a step may take; the contract says about two."""
GRACE_S = 0.001
"""What any call may take beside its charge: the clock's own noise."""
GAP_S = 0.05
"""The longest time between two charges."""
_REFERENCE_S = 0.004
"""``_reference`` on the machine on which a step was set to half a microsecond."""


class Spent(Exception):
    """The budget is spent."""


@dataclass
class RuleBudget:
    """A Runtime that remembers what it was charged, and when it was asked last."""

    steps_left: int = POLICY_STEPS_MAX
    bytes_left: int = EXPRESSION_BYTES_MAX
    gap: float = 0.0
    last: float = field(default_factory=time.thread_time)
    paid: float = 0.0
    """What was paid for at once, last: room is made before it is done."""

    def charge(self, steps: int = 1, /) -> None:
        """Spend steps."""
        self._look()
        self.paid = steps * STEP_S * SLACK if steps > HEAVY_STEPS else 0.0
        self.steps_left -= steps
        if self.steps_left < 0:
            raise BudgetExceeded("test.steps", "no steps left")

    def charge_bytes(self, count: int, /) -> None:
        """Spend bytes."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise BudgetExceeded("test.bytes", "no bytes left")

    def check_clock(self) -> None:
        """Be asked."""
        self._look()

    def _look(self) -> None:
        now = time.thread_time()
        self.gap = max(self.gap, now - self.last - self.paid)
        self.last = now

    @property
    def steps(self) -> int:
        """Steps spent, at most the budget."""
        return POLICY_STEPS_MAX - self.steps_left

    @property
    def bytes(self) -> int:
        """Bytes spent."""
        return EXPRESSION_BYTES_MAX - self.bytes_left


Work = Callable[[RuleBudget], Any]


def _reference() -> float:
    """Return the time of a fixed piece of Python work."""
    known = {str(key): key for key in range(100)}
    names = list(known)
    began = time.thread_time()
    total = 0
    for _ in range(500):
        for name in names:
            total += known[name]
    return time.thread_time() - began


def slowness() -> float:
    """Return how much slower the machine is now than when the step was set."""
    return max(1.0, min(_reference() for _ in range(3)) / _REFERENCE_S)


@dataclass
class Reading:
    """What one piece of work took."""

    seconds: float
    steps: float
    gap: float
    bytes: int


def run(work: Work, times: int = 1) -> Reading:
    """Do the work some times, to its end or the budget's."""
    budget = RuleBudget()
    began = budget.last = time.thread_time()
    done = 0
    for _ in range(times):
        done += 1
        try:
            work(budget)
        except (InputError, CelFailed):
            if budget.steps_left < 0 or budget.bytes_left < 0:
                break
    ended = time.thread_time()
    gap = max(budget.gap, (ended - budget.last - budget.paid) / done)
    return Reading(ended - began, budget.steps, gap, budget.bytes)


def problem(work: Work, *, times: int = 1, steps: float = 0.0) -> str:
    """Return what is wrong with the charge of some work, "" when nothing is.

    ``steps``: what the caller pays for each time, beside what the work charges.
    """
    found = ""
    for _ in range(3):
        read = run(work, times)
        slow = slowness()
        paid = (read.steps + steps * times) * STEP_S
        allowed = (paid * SLACK + GRACE_S) * slow
        found = ""
        if read.seconds > allowed:
            found = (
                f"took {read.seconds * 1e3:.2f} ms, paid for {paid * 1e3:.3f} ms"
                f" ({times} times)"
            )
        elif read.gap > GAP_S * slow:
            found = f"{read.gap * 1e3:.1f} ms between two charges"
        if not found:
            return ""
    return found


def memory_problem(work: Work, *, factor: float = 3.0, grace: int = 256 * 1024) -> str:
    """Return whether work takes more memory than it was charged for."""
    budget = RuleBudget()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        try:
            kept = work(budget)
        except (InputError, CelFailed) as error:
            kept = error
        peak = tracemalloc.get_traced_memory()[1] - before
        del kept
    finally:
        tracemalloc.stop()
    allowed = budget.bytes * factor + budget.steps * 16 + grace
    if peak > allowed:
        return f"took {peak >> 10} KiB, paid for {budget.bytes >> 10} KiB"
    return ""
