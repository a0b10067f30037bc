"""Measure the cost of work against the steps and bytes it was charged.

The contract: a step stands for at most half a microsecond, work is charged before it is
done, and the time between two charges is short, so that an evaluation can be stopped or
moved. Time is the thread's own, and the machine's current slowness is measured as well,
so that other processes do not fail the tests.
"""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kyverno_mp.errors import BudgetExceeded, InputError
from kyverno_mp.expr.cel.values import CelFailed
from kyverno_mp.limits import EXPRESSION_BYTES_MAX, HEAVY_STEPS, POLICY_STEPS_MAX
from tests.yardstick import slowness

STEP_S = 0.5e-6
SLACK = 2.5
"""The allowed ratio of a step's time to its nominal time; the contract says two."""
GRACE_S = 0.001
"""The allowed time of any call in addition to its charge: the noise of the clock."""
GAP_S = 0.05
"""The longest time between two charges."""


class Spent(Exception):
    """The budget is spent."""


@dataclass
class RuleBudget:
    """A Runtime that records its charges and the time of the last check."""

    steps_left: int = POLICY_STEPS_MAX
    bytes_left: int = EXPRESSION_BYTES_MAX
    gap: float = 0.0
    last: float = field(default_factory=time.thread_time)
    paid: float = 0.0
    """The last charge paid at once: memory is reserved before the work."""

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
        """Record the check."""
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


@dataclass
class Reading:
    """The measurements of one piece of work."""

    seconds: float
    steps: float
    gap: float
    bytes: int


def run(work: Work, times: int = 1) -> Reading:
    """Repeat the work, until it ends or the budget is spent."""
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
    """Return an error text about the charge of some work, "" if it is correct.

    ``steps``: steps that the caller pays each time, in addition to the work's charges.
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
    """Return an error text if work takes more memory than it was charged for."""
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
