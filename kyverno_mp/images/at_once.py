"""Verify several images of a review concurrently, with threads shared by all reviews.

Room: images. Takes: the parts of a review's work, one per image. Gives: Helpers. Next:
images/verifier.py, egress/registries.py. May touch: its threads, the clock.
Source: docs/images.md (number of concurrent calls): if the images of a Pod are verified
one after the other, their round trips add up.

No review waits for a free helper: the review's thread works through the parts itself,
and free helpers take over some of them. So even if a registry hangs and blocks all
helpers, other reviews are as fast as without helpers.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

Part: TypeAlias = Callable[[], None]


class Helpers:
    """The helper threads of one process, which are started on first use."""

    def __init__(self, threads: int) -> None:
        """``threads``: the number of helpers, 0 = reviews have none."""
        self._free = threading.Semaphore(threads)
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="image")
        self._own = threading.local()

    def is_current(self) -> bool:
        """Return whether the calling thread is a helper."""
        return getattr(self._own, "helps", False)

    def run(self, parts: Sequence[Part], until_ns: int) -> None:
        """Run the parts; return when all have ended or at the deadline.

        A part's error is raised here. At the deadline, running parts are left to
        finish, and parts that have not started are dropped.
        """
        run = _Run(parts)
        for _ in parts[1:]:
            if not self._free.acquire(blocking=False):
                break
            self._pool.submit(self._help, run)
        run.work()
        run.wait(until_ns)

    def stop(self) -> None:
        """Stop the helpers after their current parts."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _help(self, run: "_Run") -> None:
        self._own.helps = True
        try:
            run.work()
        finally:
            self._free.release()


class _Run:
    """The parts of one review, from which several threads take one at a time."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._left = deque(parts)
        self._open = len(parts)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._defect: Exception | None = None

    def work(self) -> None:
        """Run parts until the queue is empty."""
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
        """Wait for the other threads. Raises: the first error of a part."""
        self._ended.wait(max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
        self._left.clear()
        defect, self._defect = self._defect, None
        if defect is not None:
            try:
                raise defect
            finally:
                # SAFETY: the error refers to this frame (errors.without_frames).
                del defect
