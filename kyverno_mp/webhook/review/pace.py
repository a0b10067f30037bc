"""Prevent long evaluations from delaying the other reviews of a worker.

Room: webhook. Takes: the clock. Gives: paces for program/engine, which requests more
time after each slice. Next: service (event loop), lanes and review (threads).
May touch: sleeps in threads, never in the event loop.
Source: docs/architecture.md 1 (tenants cannot hurt each other).

Python runs one thread at a time. An evaluation in the event loop that exceeds its slice
stops and starts over in a thread. The threads take turns and sleep after each slice, so
the event loop waits for at most about one of them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from kyverno_mp.errors import Preempted
from kyverno_mp.limits import (
    INLINE_STARVED_NS_MAX,
    INLINE_STARVED_SLICE_NS,
    THREAD_PAUSE_NS,
    THREAD_SLICE_NS,
)


class EventLoopPace:
    """One slice, extended a little if other threads or processes used the core.

    On a busy machine, a slice can pass while the thread waits for a core. A cheap
    review then needs only some microseconds more, while a lane would take milliseconds.
    """

    __slots__ = ("_began_ns", "_most_ns", "_thread_ns", "slice_ends_ns")

    def __init__(
        self,
        slice_ends_ns: int,
        thread_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """``thread_ns`` returns the CPU time of this thread."""
        self.slice_ends_ns = slice_ends_ns
        self._most_ns = slice_ends_ns + INLINE_STARVED_NS_MAX
        self._thread_ns = thread_ns
        self._began_ns = -1
        """The thread's CPU time at the end of the slice.

        PERF: reading it is a system call, which reviews that end within their slice do
        not need.
        """

    def next_slice(self, now_ns: int) -> None:
        """Stop the evaluation in the event loop, or let it end. Raises: Preempted."""
        if now_ns < self.slice_ends_ns:
            return
        if now_ns < self._most_ns:
            ran_ns = self._thread_ns()
            if self._began_ns < 0:
                self._began_ns = ran_ns
            left_ns = INLINE_STARVED_SLICE_NS - (ran_ns - self._began_ns)
            if left_ns > 0:
                self.slice_ends_ns = now_ns + left_ns
                return
        self.make_room()

    def make_room(self) -> NoReturn:
        """Stop the evaluation in the event loop. Raises: Preempted."""
        raise Preempted("webhook.preempted", "the review takes long")


class ThreadPace:
    """Slices of one evaluation in a thread; other evaluations run in between."""

    __slots__ = ("_is_counted", "_long_evaluations", "slice_ends_ns")

    def __init__(self, long_evaluations: "LongEvaluations", now_ns: int) -> None:
        self._long_evaluations = long_evaluations
        self._is_counted = False
        self.slice_ends_ns = now_ns + THREAD_SLICE_NS

    def next_slice(self, now_ns: int) -> None:
        """Sleep while the event loop and each other evaluation run a slice."""
        if now_ns < self.slice_ends_ns:
            return
        if not self._is_counted:
            self._is_counted = True
            self._long_evaluations.join()
        self.slice_ends_ns = self._long_evaluations.wait_turn() + THREAD_SLICE_NS

    def make_room(self) -> None:
        """Sleep if this slice has ended: a thread may do work of any length."""
        self.next_slice(self._long_evaluations.now_ns())

    def end(self) -> None:
        """Stop counting as a long evaluation."""
        if self._is_counted:
            self._long_evaluations.leave()


class LongEvaluations:
    """The long evaluations of one worker."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._sleep = sleep
        self._lock = threading.Lock()
        self.count = 0
        """Evaluations that exceeded their first slice and still run."""

    @contextmanager
    def pace(self) -> Iterator[ThreadPace]:
        """Create the pace of one evaluation."""
        pace = ThreadPace(self, self._monotonic_ns())
        try:
            yield pace
        finally:
            pace.end()

    def join(self) -> None:
        """Count one more evaluation."""
        with self._lock:
            self.count += 1

    def leave(self) -> None:
        """Count one evaluation less."""
        with self._lock:
            self.count -= 1

    def now_ns(self) -> int:
        """Return the current time."""
        return self._monotonic_ns()

    def wait_turn(self) -> int:
        """Sleep while each other evaluation runs a slice; return the new time.

        A lone evaluation also sleeps, for the event loop (limits.THREAD_PAUSE_NS).
        """
        others = self.count - 1
        self._sleep(max(others * THREAD_SLICE_NS, THREAD_PAUSE_NS) / 1e9)
        return self._monotonic_ns()
