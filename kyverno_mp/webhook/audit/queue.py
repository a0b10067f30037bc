"""Run work that must not delay an answer in a separate thread, with a bounded queue.

Room: webhook. Takes: tasks of answered reviews (audit evaluation). Gives: nothing;
reports drops through a callback. Next: ports.AuditSink.
May touch: one thread, started by ``start``, never at import.
Source: docs/behaviour/controllers 2.7 (audit pool); docs/architecture.md 1 (every queue
is bounded and counts in a metric what it dropped).
"""

import queue
import threading
from collections.abc import Callable

from kyverno_mp.limits import AUDIT_QUEUE_BYTES_MAX

Task = Callable[[], None]


class AuditQueue:
    """A bounded queue of tasks and the thread that runs them, oldest first."""

    def __init__(
        self,
        tasks_max: int,
        *,
        on_drop: Callable[[], None],
        on_error: Callable[[Exception], None],
        bytes_max: int = AUDIT_QUEUE_BYTES_MAX,
    ) -> None:
        """Create an audit queue that does not run yet.

        ``on_error`` receives each exception that a task raises; the next task runs
        anyway. ``bytes_max``: the size of the reviews that all waiting tasks hold.
        """
        self._bytes_max = bytes_max
        # One extra place for the end marker. Also, 0 would mean an unbounded queue.
        self._tasks: queue.Queue[tuple[Task, int] | None] = queue.Queue(tasks_max + 1)
        self._bytes = 0
        self._lock = threading.Lock()
        self._tasks_max = tasks_max
        self._on_drop = on_drop
        self._on_error = on_error
        self._thread: threading.Thread | None = None
        self._closed = False
        self.unfinished = 0
        """Tasks that are queued or running."""
        self.dropped = 0
        """Tasks rejected so far."""

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return self._tasks.qsize()

    def start(self) -> None:
        """Start the thread. SAFETY: only after the fork; threads do not survive it."""
        self._thread = threading.Thread(
            target=self._run, name="audit-queue", daemon=True
        )
        self._thread.start()

    @property
    def held_bytes(self) -> int:
        """The size of the reviews that the waiting tasks hold."""
        return self._bytes

    def put(self, task: Task, size_bytes: int = 0) -> bool:
        """Queue a task; return False if it is dropped because the queue is full.

        ``size_bytes`` is the size of the decoded review that the task holds. All
        waiting tasks together can hold ``bytes_max``, but an empty queue accepts any
        review.
        """
        # SAFETY: several threads call this; a task queued before the end marker runs.
        with self._lock:
            is_full = self._tasks.qsize() >= self._tasks_max or (
                self._bytes and self._bytes + size_bytes > self._bytes_max
            )
            is_dropped = self._closed or is_full
            if is_dropped:
                self.dropped += 1
            else:
                self._bytes += size_bytes
                self.unfinished += 1
                self._tasks.put_nowait((task, size_bytes))
        if is_dropped:
            self._on_drop()
        return not is_dropped

    def stop(self, timeout_s: float) -> bool:
        """Stop accepting tasks and finish the queued ones; return False on timeout."""
        with self._lock:
            self._closed = True
            if self._thread is None:
                return not self.unfinished
            self._tasks.put_nowait(None)
        self._thread.join(timeout_s)
        return not self.unfinished

    def _run(self) -> None:
        while (waiting := self._tasks.get()) is not None:
            task, size_bytes = waiting
            try:
                task()
            except Exception as error:  # noqa: BLE001 - one bad task must not stop others
                self._on_error(error)
            with self._lock:
                self._bytes -= size_bytes
                self.unfinished -= 1
