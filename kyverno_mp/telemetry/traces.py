"""Sample traces, and send the finished ones in a thread.

Room: telemetry. Takes: the beginnings of reviews, reconciles and commands. Gives:
Tracer; ``root`` and the other functions about the tracer of this process. Next:
telemetry/otlp.py sends. May touch: clocks, random numbers, one thread, which a Tracer
starts after the fork.
Source: W3C Trace Context (traceparent); docs/behaviour/controllers 9.3.

Finished traces wait in a bounded queue. So no review waits for a collector. Without a
tracer, a review makes no call of this module; an unsampled review makes one.
"""

import logging
import math
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from kyverno_mp.limits import SPANS_QUEUED_MAX, TRACE_BATCH_SPANS_MAX
from kyverno_mp.telemetry.tally import Tally
from kyverno_mp.telemetry.trace import Attributes, Trace, new_id

_log = logging.getLogger(__name__)
EXPORTED: Final = "exported"
DROPPED: Final = "dropped"
FAILED: Final = "failed"
_PARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
    rb"(?:-.*)?"
)
_SAMPLED: Final = 1
_SEND_EVERY_S: Final = 1.0


class Tracer:
    """Samples traces, and sends them in a thread of its own.

    ``export`` sends some traces and returns whether the collector took them; it runs in
    that thread only and may take as long as its own deadline. ``slow_ns``: policies
    that take less get no step.
    """

    def __init__(
        self,
        export: Callable[[Sequence[Trace]], bool],
        *,
        sampled: float,
        slow_ns: int,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        queued_max: int = SPANS_QUEUED_MAX,
    ) -> None:
        self._export = export
        self._sampled = sampled
        self.slow_ns = slow_ns
        self.now_ns = monotonic_ns
        self._queued_max = queued_max
        # Seeded by the operating system: a fork would copy the state of the shared one.
        self._random = random.Random()  # noqa: S311 - a choice, no secret
        self._skipped = self._gap()
        """Traces before the next sampled one."""
        self.counts = Tally()
        """Numbers of steps, by outcome."""
        self._queue: deque[Trace] = deque()
        self._queued = 0
        self._lock = threading.Condition()
        self._is_stopping = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)

    def begin(self, name: str, parent: bytes = b"", began_ns: int = 0) -> Trace | None:
        """Begin a trace; return None if it is not sampled.

        ``parent``: a traceparent header, whose sender decides about sampling.
        """
        ids = (0, 0)
        matched = _PARENT.fullmatch(parent) if parent else None
        if matched is not None:
            if not int(matched[3], 16) & _SAMPLED:
                return None
            ids = int(matched[1], 16), int(matched[2], 16)
        elif self._skipped > 0:
            self._skipped -= 1
            return None
        else:
            self._skipped = self._gap()
        if not ids[0]:
            ids = new_id(16), 0
        return Trace(self, name, ids, began_ns or self.now_ns())

    def _gap(self) -> float:
        """Draw the number of traces before the next sampled one.

        PERF: as independent decisions with the same probability, but one draw for all
        traces in between.
        """
        if self._sampled >= 1:
            return 0
        if self._sampled <= 0:
            return math.inf
        draw = 1.0 - self._random.random()
        return int(math.log(draw) / math.log1p(-self._sampled))

    def start(self) -> None:
        """Start the thread; call it after the fork."""
        self._thread.start()

    def stop(self, within_s: float) -> bool:
        """Send what waits; return whether it was sent in time."""
        with self._lock:
            self._is_stopping = True
            self._lock.notify()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def ended(self, trace: Trace) -> None:
        """Queue a trace, or drop it if the queue is full."""
        count = trace.size
        with self._lock:
            if self._queued + count <= self._queued_max and not self._is_stopping:
                self._queued += count
                self._queue.append(trace)
                if self._queued >= TRACE_BATCH_SPANS_MAX:
                    self._lock.notify()
                return
        self.counts.add((DROPPED,), count)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            with self._lock:
                if not self._is_stopping and self._queued < TRACE_BATCH_SPANS_MAX:
                    self._lock.wait(_SEND_EVERY_S)
                batch, count = self._batch()
                is_last = self._is_stopping and not self._queue
            if batch:
                self._send(batch, count)

    def _batch(self) -> tuple[list[Trace], int]:
        batch: list[Trace] = []
        count = 0
        while self._queue and count < TRACE_BATCH_SPANS_MAX:
            trace = self._queue.popleft()
            batch.append(trace)
            count += trace.size
        self._queued -= count
        return batch, count

    def _send(self, batch: list[Trace], count: int) -> None:
        reason = ""
        try:
            is_sent = self._export(batch)
        except Exception as error:  # noqa: BLE001 - the thread must go on
            is_sent, reason = False, f": {type(error).__name__}"
        self.counts.add((EXPORTED if is_sent else FAILED,), count)
        if is_sent is self._is_failing:
            # Once for each outage, not for each batch.
            self._is_failing = not is_sent
            if is_sent:
                _log.info("the collector of traces accepts them again")
            else:
                _log.warning("the collector of traces accepts none%s", reason)


class _Process:
    """The tracer of this process, for code that is not passed one."""

    tracer: Tracer | None = None


def install(tracer: Tracer | None) -> None:
    """Start a tracer, and use it in ``root`` from now on; None: trace nothing."""
    _Process.tracer = tracer
    if tracer is not None:
        tracer.start()


def finish(within_s: float) -> None:
    """Send what waits; call it at the end of the process."""
    if _Process.tracer is not None:
        _Process.tracer.stop(within_s)


def counts() -> Mapping[tuple[str, ...], int]:
    """Return the numbers of steps since the last call, by outcome."""
    tracer = _Process.tracer
    return {} if tracer is None else tracer.counts.drain()


def root(name: str, attributes: Attributes) -> AbstractContextManager[Trace | None]:
    """Return the context of a trace, or of nothing if this one is not sampled."""
    tracer = _Process.tracer
    trace = None if tracer is None else tracer.begin(name)
    if trace is None:
        return nullcontext()
    trace.attributes.update(attributes)
    return trace
