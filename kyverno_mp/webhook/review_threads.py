"""Run the reviews of policies in threads, fairly by namespace.

Room: webhook. Takes: bodies of reviews. Gives: Reviewers, and Full if too many wait.
Next: webhook/policy_review.py answers them. May touch: its own threads.

A large policy takes seconds to check, and a user who can create policies in one
namespace can send many. So one review of each namespace runs at a time, the namespaces
take turns, and one thread and some places are reserved for cluster policies.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import falcon
import msgspec

from kyverno_mp.limits import (
    NAMESPACED_POLICY_REVIEWS_MAX,
    POLICY_REVIEW_THREADS,
    POLICY_REVIEWS_MAX,
    POLICY_REVIEWS_OF_NAMESPACE_MAX,
)
from kyverno_mp.values.records import UNDECODABLE
from kyverno_mp.webhook.http_errors import POLICY_REVIEWS_FULL

_CLUSTER: Final = ""


class _Request(msgspec.Struct):
    namespace: str = ""


class _Review(msgspec.Struct):
    request: _Request | None = None


_DECODER: Final = msgspec.json.Decoder(_Review)


class Full(falcon.HTTPServiceUnavailable):
    """Raised if too many policy reviews wait."""

    reason = POLICY_REVIEWS_FULL


class _Waiting(NamedTuple):
    answer: Callable[[bytes], bytes]
    body: bytes
    answered: "asyncio.Future[bytes]"


class Reviewers:
    """The threads that review policies, because a large policy takes long to check."""

    def __init__(self) -> None:
        # PERF: few threads, because they compile in Python and compete with the event
        # loop.
        self._pool = ThreadPoolExecutor(POLICY_REVIEW_THREADS, "policy-review")
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        """Waiting reviews by namespace, "" for cluster policies; the first one runs
        next."""
        self._running: list[str] = []
        self._under_way: dict[str, int] = {}
        """Running or waiting reviews, by namespace."""
        self._is_stopped = False

    def is_idle(self) -> bool:
        """Return whether no review is under way."""
        return not self._under_way

    async def run(self, answer: Callable[[bytes], bytes], body: bytes) -> bytes:
        """Answer in a thread. Raises: Full, and the errors of ``answer``."""
        namespace = _namespace_of(body)
        if self._is_full(namespace):
            raise Full(description="too many policies are being reviewed")
        self._under_way[namespace] = self._under_way.get(namespace, 0) + 1
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(namespace, deque())
        queue.append(_Waiting(answer, body, answered))
        self._start()
        return await answered

    def stop(self) -> None:
        """Stop accepting; the answers of queued reviews would not be read."""
        self._is_stopped = True
        for queue in self._waiting.values():
            for one in queue:
                one.answered.cancel()
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_full(self, namespace: str) -> bool:
        under_way = self._under_way
        total = sum(under_way.values())
        if self._is_stopped or total >= POLICY_REVIEWS_MAX:
            return True
        if namespace == _CLUSTER:
            return False
        return (
            under_way.get(namespace, 0) >= POLICY_REVIEWS_OF_NAMESPACE_MAX
            or total - under_way.get(_CLUSTER, 0) >= NAMESPACED_POLICY_REVIEWS_MAX
        )

    def _start(self) -> None:
        """Start the reviews that can run now.

        Everything except the reviews themselves runs on the event loop.
        """
        while len(self._running) < POLICY_REVIEW_THREADS:
            namespace = self._next()
            if namespace is None:
                return
            queue = self._waiting.pop(namespace)
            one = queue.popleft()
            if queue:
                # Behind the other namespaces.
                self._waiting[namespace] = queue
            if one.answered.done():
                # The API server no longer waits for the answer.
                self._count_end(namespace)
                continue
            self._running.append(namespace)
            reviewing = self._pool.submit(one.answer, one.body)
            loop = one.answered.get_loop()
            reviewing.add_done_callback(
                partial(_finish, loop, self._end, namespace, one)
            )

    def _next(self) -> str | None:
        """Return the namespace whose turn it is, None if none can run."""
        tenants = [one for one in self._running if one != _CLUSTER]
        has_room = len(tenants) < POLICY_REVIEW_THREADS - 1
        for namespace in self._waiting:
            if namespace == _CLUSTER or (has_room and namespace not in tenants):
                return namespace
        return None

    def _end(self, namespace: str, waiting: _Waiting, done: "Future[bytes]") -> None:
        self._running.remove(namespace)
        self._count_end(namespace)
        if not waiting.answered.done():
            if done.cancelled():
                waiting.answered.cancel()
            elif (error := done.exception()) is not None:
                waiting.answered.set_exception(error)
            else:
                waiting.answered.set_result(done.result())
        if not self._is_stopped:
            self._start()

    def _count_end(self, namespace: str) -> None:
        self._under_way[namespace] -= 1
        if not self._under_way[namespace]:
            del self._under_way[namespace]


def _finish(
    loop: asyncio.AbstractEventLoop,
    end: Callable[[str, _Waiting, "Future[bytes]"], None],
    namespace: str,
    waiting: _Waiting,
    done: "Future[bytes]",
) -> None:
    # The loop can already be closed when a late thread ends.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(end, namespace, waiting, done)


def _namespace_of(body: bytes) -> str:
    """Return the namespace of the reviewed object, "" if the body is not a review."""
    try:
        review = _DECODER.decode(body)
    except UNDECODABLE:
        return _CLUSTER
    return _CLUSTER if review.request is None else review.request.namespace
