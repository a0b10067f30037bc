"""Measure the cost of work against its charges. Used by test_charges.py.

A step stands for at most half a microsecond of one core of the machine on which the
limits were chosen; ``pace`` is the slowness of the current machine. Time is the
thread's own, so that other processes do not count.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from kyverno_mp.errors import Error
from kyverno_mp.expr.scope import Runtime

STEP_NS: Final = 500
REFERENCE_NS: Final = 21_000_000
"""Time of ``_calibrate`` on the machine where the limits were chosen."""
UNCHARGED_NS: Final = 3_000_000
"""The total allowance without a charge: calls, small values, errors."""
UNCHARGED_BYTES: Final = 2 << 20
GAP_NS: Final = 50_000_000
"""The longest time between two charges."""
RATIO_MAX: Final = 2.0
GENEROUS: Final = 2.0
"""Tolerance for timings on a busy machine."""


@cache
def pace() -> float:
    """Return the slowness of the current machine."""
    return max(_calibrate() / REFERENCE_NS, 1.0)


def _calibrate() -> int:
    """Return the time of a mix of loops, calls and passes over texts here."""
    best = 1 << 62
    text = "abc" * 300_000
    for _ in range(5):
        start = time.thread_time_ns()
        total = 0
        for number in range(150_000):
            total += len(str(number))
        for _ in range(10):
            total += text.count("cc") + len(text.replace("b", "d"))
        best = min(best, time.thread_time_ns() - start)
    return best


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one piece of work; ``gap_ns``: the longest time between charges."""

    nanoseconds: int
    steps: int
    gap_ns: int
    charged_bytes: int
    peak_bytes: int
    outcome: str

    def faults(self) -> list[str]:
        """Return the differences between the charges and the cost."""
        found = []
        allowed = UNCHARGED_NS + RATIO_MAX * STEP_NS * self.steps
        if self.nanoseconds > allowed * pace() * GENEROUS:
            found.append(
                f"{self.nanoseconds / 1e6:.1f} ms for {self.steps} steps"
                f" ({self.nanoseconds / max(self.steps, 1):.0f} ns each)"
            )
        if self.gap_ns > GAP_NS * pace() * GENEROUS:
            found.append(f"{self.gap_ns / 1e6:.1f} ms between two charges")
        if self.peak_bytes > UNCHARGED_BYTES + 3 * self.charged_bytes:
            found.append(f"peak of {self.peak_bytes:,} for {self.charged_bytes:,}")
        return [f"{fault} [{self.outcome}]" for fault in found]


class Clocked(Runtime):
    """A Runtime that records the longest time between two charges.

    Work that was charged beforehand may take as long as its charge allows.
    """

    __slots__ = ("ahead_ns", "gap_ns", "last_ns", "owner")
    ahead_ns: float
    gap_ns: float
    last_ns: int
    owner: "Clocked | None"

    def start(self) -> None:
        """Start the measurement, of which the first call of ``pace`` is no part."""
        pace()
        self.ahead_ns = self.gap_ns = 0.0
        self.last_ns = time.thread_time_ns()
        self.owner = None

    def with_int64(self) -> "Clocked":
        """Return a runtime whose charges are also charges to this one."""
        found: Clocked = runtime(
            Clocked, steps=self.steps_left, bytes_max=self.bytes_left
        )
        found.start()
        found.owner = self
        return found

    def look(self) -> None:
        """Record the time since the last charge."""
        if self.owner is not None:
            self.owner.look()
        taken = time.thread_time_ns() - self.last_ns
        if taken > self.ahead_ns:
            self.gap_ns = max(self.gap_ns, taken)
        self.last_ns = time.thread_time_ns()

    def charge(self, steps: int = 1) -> None:
        """Charge, and record the time since the last charge."""
        self.look()
        super().charge(steps)
        self.ahead_ns = RATIO_MAX * GENEROUS * pace() * STEP_NS * steps
        if self.owner is not None:
            self.owner.ahead_ns = self.ahead_ns

    def charge_items(self, count: int) -> None:
        """Charge both in one call, as the original does."""
        self.charge(count)
        self.charge_bytes(8 * count)


def runtime(kind: type[Runtime] = Runtime, **given: Any) -> Any:
    """Return a new budget."""
    return kind(
        now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        monotonic_ns=time.monotonic_ns,
        random_bytes=bytes,
        resolve_host=lambda _host: ["10.0.0.1"],
        **given,
    )


def cost_of(work: Callable[[Runtime], Any], *, memory: bool = True) -> Cost:
    """Do the work three times: for its time, its gaps and its memory."""
    plain = runtime()
    steps, size = plain.steps_left, plain.bytes_left
    start = time.thread_time_ns()
    outcome = _outcome(work, plain)
    taken = time.thread_time_ns() - start
    used, built = steps - plain.steps_left, size - plain.bytes_left
    gap = taken
    if taken > GAP_NS:
        clocked = runtime(Clocked)
        clocked.start()
        _outcome(work, clocked)
        clocked.look()
        gap = int(clocked.gap_ns)
    peak = _peak(work) if memory else 0
    # A rejected value was not created.
    used = min(used, steps) if outcome == "expr.steps" else used
    return Cost(taken, used, gap, min(built, size), peak, outcome)


def _outcome(work: Callable[[Runtime], Any], given: Runtime) -> str:
    try:
        work(given)
    except Error as error:
        return error.code
    return "done"


def _peak(work: Callable[[Runtime], Any]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        _outcome(work, runtime())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
