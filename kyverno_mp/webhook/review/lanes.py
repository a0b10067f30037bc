"""Run reviews that can do I/O, or take long, in threads outside of the event loop.

Room: webhook. Takes: functions that return an answer's bytes. Gives: asyncio futures
that are done by the deadline. Next: webhook/http/protocol.
May touch: a thread pool, started lazily after the fork; the event loop.
Source: docs/architecture.md 3 (effects decide scheduling): a slow registry cannot stall
others.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from kyverno_mp.egress.answering import UNANSWERED
from kyverno_mp.errors import DeadlinePassed, Error, QueueFull
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import RESERVED_THREADS_DIVISOR
from kyverno_mp.queues.turns import Shares, Turns
from kyverno_mp.webhook.review.pace import LongEvaluations

_LOG = logging.getLogger(__name__)


class LateAnswer(asyncio.Future[bytes]):
    """An answer that can be sent, at its deadline, before the work has ended.

    ``ended`` is done when no thread runs or will run the work. Until then, the work
    keeps its input in memory.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.ended: asyncio.Future[None] = loop.create_future()


class _Waiting(NamedTuple):
    work: Callable[[Pace], bytes]
    answer: LateAnswer
    timer: asyncio.TimerHandle


class Lane:
    """A bounded thread pool; it rejects reviews while ``waiting_max`` reviews wait.

    If the lane is shared (queues/turns.py), reviews that wait for the same server, e.g.
    a registry, get half of the threads, all but one of them while no other reviews can
    start, and half of the places in the queue. Those of one namespace get at most half
    of that, because a namespace can name any server. Reviews with a server that does
    not answer (egress/answering.py) get half of the threads and places together.
    Namespaces take turns by the thread-time that they have used and hold, and a part of
    the threads is for those whose reviews end soon.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: int,
        waiting_max: int,
        monotonic_ns: Callable[[], int],
        long_evaluations: LongEvaluations | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        """``long_evaluations``: the evaluations with which these reviews take turns.

        ``is_shared``: whether shares are limited.
        """
        # With two threads, both: otherwise one namespace could take a registry's part.
        server_max = max(min(2, threads), threads - 1)
        half = max(1, threads // 2)
        self._turns = Turns(
            server_max,
            max(1, server_max // 2),
            fair_max=half,
            limits={UNANSWERED: half},
            long_max=threads - threads // RESERVED_THREADS_DIVISOR,
            now_ns=monotonic_ns if is_shared else None,
        )
        self._share_max = self._tenant_max = self._running_max = threads + waiting_max
        if is_shared:
            self._share_max = max(1, self._running_max // 2)
            self._tenant_max = max(1, self._share_max // 2)
        self._free = threads if is_shared else self._running_max
        """Reviews that may start; without shares, the pool itself queues them."""
        self._waiting: dict[Shares, deque[_Waiting]] = {}
        self._shares: Counter[str] = Counter()
        """The reviews of each share that run or wait."""
        self._long_evaluations = long_evaluations or LongEvaluations()
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="review")
        self._monotonic_ns = monotonic_ns
        self._late: deque[tuple[LateAnswer, Callable[[Error], bytes]]] = deque()
        """Reviews past their deadline; the first one is being answered or was answered.
        """
        self.running = 0
        """Reviews that run or wait for a thread."""
        self.refused = 0
        """Reviews rejected so far because the lane was full."""

    def run(
        self,
        work: Callable[[Pace], bytes],
        deadline_ns: int,
        on_error: Callable[[Error], bytes],
        shares: Shares = (),
    ) -> LateAnswer:
        """Start ``work``; past the deadline, ``on_error`` returns the answer.

        ``shares``: the review's namespace and the servers for which it may wait.
        ``work`` itself must not raise. A late thread continues until its own deadline
        checks stop it. It occupies the pool until then.
        """
        answer = LateAnswer(self._loop)
        if not self._has_place(shares):
            self.refused += 1
            answer.set_result(
                on_error(QueueFull("webhook.slow_lane_full", "too many slow reviews"))
            )
            answer.ended.set_result(None)
            return answer
        self.running += 1
        self._shares.update(shares)
        left_s = max(0.0, (deadline_ns - self._monotonic_ns()) / 1e9)
        timer = self._loop.call_later(left_s, self._expire, answer, on_error)
        waiting = self._waiting.setdefault(shares, deque())
        waiting.append(_Waiting(work, answer, timer))
        self._start_waiting()
        return answer

    def _has_place(self, shares: Shares) -> bool:
        if self.running >= self._running_max:
            return False
        return not shares or (
            self._shares[shares[0]] < self._tenant_max
            and all(self._shares[share] < self._share_max for share in shares[1:])
        )

    def _start_waiting(self) -> None:
        """Give the free threads to the reviews whose turn it is."""
        while self._free:
            shares = self._turns.choose(self._waiting)
            if shares is None:
                return
            waiting = self._waiting.pop(shares)
            review = waiting.popleft()
            if waiting:
                self._waiting[shares] = waiting
            if review.answer.done():
                self._leave(review.answer, shares)
                continue
            self._free -= 1
            began_ns = self._turns.begin(shares)
            self._start(review, shares, began_ns)

    def _start(self, review: _Waiting, shares: Shares, began_ns: int) -> None:
        def done(finished: Future[bytes]) -> None:
            # The loop can already be closed when a late thread ends.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(
                    self._finish, finished, review, shares, began_ns
                )

        self._pool.submit(self._work, review.work).add_done_callback(done)

    def _leave(self, answer: LateAnswer, shares: Shares) -> None:
        self.running -= 1
        self._shares.subtract(shares)
        for share in shares:
            if not self._shares[share]:
                del self._shares[share]
        # First, so that the lane has a free place when the caller receives the answer.
        answer.ended.set_result(None)

    def _work(self, work: Callable[[Pace], bytes]) -> bytes:
        with self._long_evaluations.pace() as pace:
            return work(pace)

    def stop(self) -> None:
        """Accept no more work and drop waiting work; running threads finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for shares, waiting in self._waiting.items():
            for review in waiting:
                review.timer.cancel()
                self._leave(review.answer, shares)
        self._waiting.clear()

    def _finish(
        self, finished: Future[bytes], waiting: _Waiting, shares: Shares, began_ns: int
    ) -> None:
        answer, timer = waiting.answer, waiting.timer
        self._free += 1
        self._turns.end(shares, len(self._waiting), began_ns)
        self._leave(answer, shares)
        self._start_waiting()
        if finished.cancelled():
            timer.cancel()
            return
        error = finished.exception()
        if error is not None:
            # ``work`` must not raise; leave the answer to the timer.
            _LOG.error("internal error in a slow review", exc_info=error)
            return
        timer.cancel()
        if not answer.done():
            answer.set_result(finished.result())

    def _expire(self, answer: LateAnswer, on_error: Callable[[Error], bytes]) -> None:
        """Answer without the thread, one answer per loop iteration."""
        self._late.append((answer, on_error))
        if len(self._late) == 1:
            self._answer_late()

    def _answer_late(self) -> None:
        answer, on_error = self._late[0]
        self._loop.call_soon(self._next_late)
        if not answer.done():
            answer.set_result(
                on_error(
                    DeadlinePassed("webhook.deadline", "the time allowed has passed")
                )
            )

    def _next_late(self) -> None:
        self._late.popleft()
        if self._late:
            self._answer_late()
