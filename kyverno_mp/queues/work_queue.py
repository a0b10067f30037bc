"""Queue keys to reconcile, without duplicates: now, after a delay, or after a back-off.

Room: queues. Takes: keys, from any thread. Gives: WorkQueue: one key at a time to each
worker. Next: queues/reconcile.py runs the workers. May touch: the clock.
Source: client-go util/workqueue (queue, delaying queue, rate limiters);
controller-runtime pkg/controller/priorityqueue (one entry per key).

The guarantees:
- A waiting key is in the queue once, due at the earliest requested time.
- Only one worker processes a key at a time; a key that is added meanwhile is processed
  once more, after ``done``.
- Keys are returned in the order of their due times, then in the order of addition.
- The bound counts distinct keys: a known key is always accepted, so no retry and no
  addition during its processing is lost.
- After ``shut_down`` the queue accepts no keys. It still returns keys that are due,
  unless ``drain`` is False, and discards those that are due later.
"""

import heapq
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_DOUBLINGS_MAX: Final = 64
_STALE_MIN: Final = 64
"""Number of stale entries that the heap may keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The exponential back-off of a key: the pause doubles with each failure."""

    least_s: float = 0.005
    most_s: float = 1000.0

    def pause_s(self, failures: int) -> float:
        """Return the pause after this number of consecutive failures, at least one."""
        doubled = self.least_s * float(2 ** min(failures - 1, _DOUBLINGS_MAX))
        return min(self.most_s, doubled)


class WorkQueue(Generic[K]):
    """Keys to reconcile; every method may be called by any thread."""

    def __init__(
        self,
        *,
        depth_max: int,
        backoff: Backoff | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._depth_max = depth_max
        self._backoff = backoff or Backoff()
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._waiting: dict[K, tuple[float, int]] = {}
        """The due time of each key, and the number of its only valid entry in the
        heap."""
        self._heap: list[tuple[float, int, K]] = []
        self._entries = 0
        self._processing: dict[K, float | None] = {}
        """Keys that workers are processing; the time when each is due again, or
        None."""
        self._failures: dict[K, int] = {}
        self._closed = False
        self.dropped = 0
        """Number of keys rejected because the queue was full."""

    def add(self, key: K) -> bool:
        """Add a key that is due now; False if the queue is full or shut down."""
        return self.add_after(key, 0.0)

    def add_after(self, key: K, delay_s: float) -> bool:
        """Add a key that is due after a delay; an earlier due time is kept."""
        with self._changed:
            if self._closed or not self._admits(key):
                return False
            self._schedule(key, self._clock_s() + max(0.0, delay_s))
            return True

    def retry(self, key: K) -> float:
        """Add a key that failed, due after its back-off; return the pause.

        The pause is in seconds.
        """
        with self._changed:
            failures = self._failures.get(key, 0) + 1
            self._failures[key] = failures
        pause_s = self._backoff.pause_s(failures)
        self.add_after(key, pause_s)
        return pause_s

    def forget(self, key: K) -> None:
        """Reset the back-off of a key that succeeded or is no longer needed."""
        with self._changed:
            self._failures.pop(key, None)

    def hasten(self) -> None:
        """Make all waiting keys due now, and reset every back-off.

        Call it when a common cause of failures has ended.
        """
        with self._changed:
            self._failures.clear()
            now_s = self._clock_s()
            for key in list(self._waiting):
                self._schedule(key, now_s)

    def failures(self, key: K) -> int:
        """Return the number of consecutive failures of a key."""
        with self._changed:
            return self._failures.get(key, 0)

    def get(self, timeout_s: float | None = None) -> K | None:
        """Wait for a due key and take it; ``done`` must be called afterwards.

        Return None after the timeout, or if the queue is shut down and empty.
        """
        with self._changed:
            until_s = None if timeout_s is None else self._clock_s() + timeout_s
            while True:
                now_s = self._clock_s()
                key = self._take(now_s)
                if key is not None or self._closed:
                    return key
                if until_s is not None and now_s >= until_s:
                    return None
                ends = (until_s, self._next_s())
                pauses = [end - now_s for end in ends if end is not None]
                self._changed.wait(min(pauses, default=None))

    def done(self, key: K) -> None:
        """Mark a key from ``get`` as processed."""
        with self._changed:
            due_s = self._processing.pop(key)
            if due_s is not None:
                self._schedule(key, due_s)
            self._changed.notify_all()

    def shut_down(self, *, drain: bool = True) -> None:
        """Stop accepting keys; without ``drain``, stop returning keys, too."""
        with self._changed:
            self._closed = True
            now_s = self._clock_s()
            for key, (due_s, _) in list(self._waiting.items()):
                if not drain or due_s > now_s:
                    del self._waiting[key]
            for key, again_s in self._processing.items():
                if again_s is not None and (not drain or again_s > now_s):
                    self._processing[key] = None
            self._changed.notify_all()

    @property
    def known_count(self) -> int:
        """Number of distinct keys that wait or are being processed; it is bounded."""
        with self._changed:
            return len(self._waiting) + len(self._processing)

    @property
    def depth(self) -> int:
        """Number of due keys that wait for a worker. Cost: linear in their number."""
        with self._changed:
            return self._due_count(self._clock_s())

    def _admits(self, key: K) -> bool:
        if key in self._waiting or key in self._processing:
            return True
        if len(self._waiting) + len(self._processing) < self._depth_max:
            return True
        self.dropped += 1
        return False

    def _schedule(self, key: K, due_s: float) -> None:
        if key in self._processing:
            before_s = self._processing[key]
            self._processing[key] = due_s if before_s is None else min(before_s, due_s)
            return
        known = self._waiting.get(key)
        if known is not None and known[0] <= due_s:
            return
        self._entries += 1
        self._waiting[key] = (due_s, self._entries)
        heapq.heappush(self._heap, (due_s, self._entries, key))
        self._compact()
        # Wake all workers: each of them waits for the earliest key.
        self._changed.notify_all()

    def _take(self, now_s: float) -> K | None:
        due_s = self._next_s()
        if due_s is None or due_s > now_s:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._waiting[key]
        self._processing[key] = None
        return key

    def _next_s(self) -> float | None:
        """Return when the next key is due; remove stale entries from the heap."""
        while self._heap:
            due_s, entry, key = self._heap[0]
            if self._waiting.get(key) == (due_s, entry):
                return due_s
            heapq.heappop(self._heap)
        return None

    def _due_count(self, now_s: float) -> int:
        """Count the due keys: the children of a heap entry are never due before it."""
        count, places = 0, [0]
        while places:
            place = places.pop()
            if place >= len(self._heap) or self._heap[place][0] > now_s:
                continue
            due_s, entry, key = self._heap[place]
            count += self._waiting.get(key) == (due_s, entry)
            places += (2 * place + 1, 2 * place + 2)
        return count

    def _compact(self) -> None:
        """Limit the length of the heap even if keys are rescheduled often."""
        if len(self._heap) > 2 * len(self._waiting) + _STALE_MIN:
            self._heap = [
                (due_s, entry, key) for key, (due_s, entry) in self._waiting.items()
            ]
            heapq.heapify(self._heap)
