"""Run work that must not delay an answer in a separate thread, with a bounded queue.

Room: webhook. Takes: tasks of answered reviews (audit evaluation). Gives: nothing;
reports drops through a callback. Next: ports.AuditSink.
May touch: one thread, started by ``start``, never at import.
Source: docs/behaviour/controllers 2.7 (audit pool); docs/architecture.md 1 (every queue
is bounded and counts in a metric what it dropped).

A full queue drops the newest task of the namespace that holds the largest part, so that
reviews of one namespace displace no others.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from kyverno_mp.limits import AUDIT_QUEUE_BYTES_MAX
from kyverno_mp.queues.fair import Fair

Task = Callable[[], None]


class _Waiting(NamedTuple):
    task: Task
    namespace: str
    size: int


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
        self._tasks: OrderedDict[int, _Waiting] = OrderedDict()
        self._of: dict[str, deque[int]] = {}
        """The numbers of each namespace's tasks, the oldest first."""
        self._fair = Fair(tasks_max, bytes_max)
        self._numbers = count()
        self._bytes = 0
        self._changed = threading.Condition()
        self._tasks_max = tasks_max
        self._on_drop = on_drop
        self._on_error = on_error
        self._thread: threading.Thread | None = None
        self._closed = False
        self.unfinished = 0
        """Tasks that are queued or running."""
        self.dropped = 0
        """Tasks rejected or displaced so far."""

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return len(self._tasks)

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

    def put(self, task: Task, size_bytes: int = 0, namespace: str = "") -> bool:
        """Queue a task; return False if it is dropped because the queue is full.

        ``size_bytes`` is the size of the decoded review that the task holds. All
        waiting tasks together can hold ``bytes_max``, but an empty queue accepts any
        review.
        """
        # SAFETY: several threads call this; a task queued before the end marker runs.
        with self._changed:
            dropped = self._make_room(namespace, size_bytes)
            is_queued = not (self._closed or self._is_full(size_bytes))
            if is_queued:
                self._add(_Waiting(task, namespace, size_bytes))
                self._changed.notify()
            else:
                dropped += 1
            self.dropped += dropped
        for _ in range(dropped):
            self._on_drop()
        return is_queued

    def stop(self, timeout_s: float) -> bool:
        """Stop accepting tasks and finish the queued ones; return False on timeout."""
        with self._changed:
            self._closed = True
            if self._thread is None:
                return not self.unfinished
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self.unfinished

    def _is_full(self, size_bytes: int) -> bool:
        if len(self._tasks) >= self._tasks_max:
            return True
        return bool(self._bytes) and self._bytes + size_bytes > self._bytes_max

    def _make_room(self, namespace: str, size_bytes: int) -> int:
        """Displace tasks of namespaces that hold more; return their number."""
        displaced = 0
        while not self._closed and self._tasks and self._is_full(size_bytes):
            heaviest = self._fair.heaviest(namespace, size_bytes)
            if heaviest is None:
                break
            task = self._tasks.pop(self._of[heaviest][-1])
            self._take(task, newest=True)
            self._bytes -= task.size
            self.unfinished -= 1
            displaced += 1
        return displaced

    def _add(self, waiting: _Waiting) -> None:
        number = next(self._numbers)
        self._tasks[number] = waiting
        self._of.setdefault(waiting.namespace, deque()).append(number)
        self._fair.add(waiting.namespace, waiting.size)
        self._bytes += waiting.size
        self.unfinished += 1

    def _take(self, waiting: _Waiting, *, newest: bool = False) -> None:
        """Forget the newest or the oldest number of a namespace."""
        numbers = self._of[waiting.namespace]
        _ = numbers.pop() if newest else numbers.popleft()
        if not numbers:
            del self._of[waiting.namespace]
        self._fair.remove(waiting.namespace, waiting.size)

    def _next(self) -> _Waiting | None:
        """Wait for the oldest task; None after the last one."""
        with self._changed:
            while not self._tasks:
                if self._closed:
                    return None
                self._changed.wait()
            _, found = self._tasks.popitem(last=False)
            self._take(found)
            return found

    def _run(self) -> None:
        while (waiting := self._next()) is not None:
            try:
                waiting.task()
            except Exception as error:  # noqa: BLE001 - one bad task must not stop others
                self._on_error(error)
            with self._changed:
                self._bytes -= waiting.size
                self.unfinished -= 1
            del waiting
