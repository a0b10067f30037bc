"""Verify several images of a review at once, with threads that all reviews share.

Room: images. Takes: the parts of a review's work, each for another image. Gives:
Helpers. Next: images/verifier.py, egress/registries.py. May touch: its threads, the
clock.
Source: docs/images.md (how many calls at once): images of a Pod that are verified one
after the other cost the sum of their round trips.

Nothing waits for a helper to be free: the thread of the review works through the parts
itself, and free helpers take some of them away. So a registry that hangs, and with it
all helpers, makes other reviews no slower than without helpers.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

Part: TypeAlias = Callable[[], None]


class Helpers:
    """The helpers of one process; they start when they are first needed."""

    def __init__(self, threads: int) -> None:
        """``threads``: how many, 0 = reviews work alone."""
        self._free = threading.Semaphore(threads)
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="image")
        self._own = threading.local()

    def is_current(self) -> bool:
        """Return whether the thread that calls this is a helper."""
        return getattr(self._own, "helps", False)

    def run(self, parts: Sequence[Part], until_ns: int) -> None:
        """Run the parts, and return when all have ended, or at the deadline.

        What a part raises is raised here; parts still running at the deadline end by
        their own, and those not yet begun are dropped.
        """
        run = _Run(parts)
        for _ in parts[1:]:
            if not self._free.acquire(blocking=False):
                break
            self._pool.submit(self._help, run)
        run.work()
        run.wait(until_ns)

    def stop(self) -> None:
        """Start no more helpers; those at work finish their part."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _help(self, run: "_Run") -> None:
        self._own.helps = True
        try:
            run.work()
        finally:
            self._free.release()


class _Run:
    """The parts of one review, which several threads take one by one."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._left = deque(parts)
        self._open = len(parts)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._defect: Exception | None = None

    def work(self) -> None:
        """Run parts until none is left."""
        while True:
            try:
                part = self._left.popleft()
            except IndexError:
                return
            try:
                part()
            except Exception as error:  # noqa: BLE001 - the caller of ``run`` gets it
                self._defect = self._defect or error
            with self._lock:
                self._open -= 1
                if not self._open:
                    self._ended.set()

    def wait(self, until_ns: int) -> None:
        """Wait for the others. Raises: what a part has raised."""
        self._ended.wait(max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
        self._left.clear()
        if self._defect is not None:
            raise self._defect
