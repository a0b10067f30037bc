"""Run reviews that may wait for something outside, or take long, beside the event loop.

Room: webhook. Takes: functions that give an answer's bytes. Gives: asyncio futures that
are done by the deadline at the latest. Next: protocol.
May touch: a thread pool, started lazily after the fork; the event loop.
Source: docs/architecture.md 3 (effects decide scheduling): a slow registry cannot stall
others.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kyverno_mp.errors import DeadlinePassed, Error, QueueFull
from kyverno_mp.expr.scope import Pace
from kyverno_mp.webhook.review.pace import Crowd

_LOG = logging.getLogger(__name__)


class LateAnswer(asyncio.Future[bytes]):
    """An answer that may be given, by its deadline, before the work has ended.

    ``ended`` is done when no thread has the work any more, nor will have it: until then
    what it was given is in memory.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.ended: asyncio.Future[None] = loop.create_future()


class SlowLane:
    """A bounded thread pool; more than ``waiting_max`` waiting reviews are refused."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: int,
        waiting_max: int,
        monotonic_ns: Callable[[], int],
        crowd: Crowd | None = None,
    ) -> None:
        """``crowd``: whom the reviews in these threads take turns with."""
        self._crowd = crowd or Crowd()
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="review")
        self._running_max = threads + waiting_max
        self._monotonic_ns = monotonic_ns
        self.running = 0
        """Reviews that run or wait for a thread."""
        self.refused = 0
        """Reviews that found no place so far."""

    def run(
        self,
        work: Callable[[Pace], bytes],
        deadline_ns: int,
        on_error: Callable[[Error], bytes],
    ) -> LateAnswer:
        """Start ``work``; past the deadline the answer is that of ``on_error``.

        ``work`` itself must not raise. A thread that is late goes on until its own
        deadline checks stop it, and keeps its place in the pool until then.
        """
        answer = LateAnswer(self._loop)
        if self.running >= self._running_max:
            self.refused += 1
            answer.set_result(
                on_error(QueueFull("webhook.slow_lane_full", "too many slow reviews"))
            )
            answer.ended.set_result(None)
            return answer
        self.running += 1
        left_s = max(0.0, (deadline_ns - self._monotonic_ns()) / 1e9)
        timer = self._loop.call_later(left_s, self._expire, answer, on_error)

        def done(finished: Future[bytes]) -> None:
            # The loop may be closed already when a late thread ends.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._finish, finished, answer, timer)

        self._pool.submit(self._work, work).add_done_callback(done)
        return answer

    def _work(self, work: Callable[[Pace], bytes]) -> bytes:
        with self._crowd.pace() as pace:
            return work(pace)

    def stop(self) -> None:
        """Take no more work, forget what waits; running threads end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _finish(
        self,
        finished: Future[bytes],
        answer: LateAnswer,
        timer: asyncio.TimerHandle,
    ) -> None:
        self.running -= 1
        # First, so that who waits for the answer finds the room that this one had.
        answer.ended.set_result(None)
        if finished.cancelled():
            timer.cancel()
            return
        error = finished.exception()
        if error is not None:
            # Against the contract. The timer answers, or nobody would.
            _LOG.error("defect in a slow review", exc_info=error)
            return
        timer.cancel()
        if not answer.done():
            answer.set_result(finished.result())

    @staticmethod
    def _expire(answer: LateAnswer, on_error: Callable[[Error], bytes]) -> None:
        if not answer.done():
            answer.set_result(
                on_error(
                    DeadlinePassed("webhook.deadline", "the time allowed has passed")
                )
            )
