"""Reviews of policies take turns by namespace, and leave room for administrators.

A failure means: one tenant's large policies delay all reviews until the API server
times out.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable

import pytest

from kyverno_mp.limits import (
    NAMESPACED_POLICY_REVIEWS_MAX,
    POLICY_REVIEW_THREADS,
    POLICY_REVIEWS_MAX,
    POLICY_REVIEWS_OF_NAMESPACE_MAX,
)
from kyverno_mp.webhook.review_threads import Full, Reviewers
from tests.waiting import HANG_S


def body(namespace: str, uid: str = "") -> bytes:
    request = {"uid": uid, **({"namespace": namespace} if namespace else {})}
    return json.dumps({"request": request}).encode()


class Held:
    """Answers that wait until they are released, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[bytes] = []
        self._gates: dict[bytes, threading.Event] = {}
        self._changed = threading.Condition()

    def answer(self, given: bytes) -> bytes:
        gate = self._gate(given)
        with self._changed:
            self.began.append(given)
            self._changed.notify_all()
        assert gate.wait(HANG_S)
        return given

    def let_go(self, given: bytes) -> None:
        self._gate(given).set()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.began) >= count, HANG_S)

    def _gate(self, given: bytes) -> threading.Event:
        with self._changed:
            return self._gates.setdefault(given, threading.Event())


def told(story: Callable[[Reviewers, Held], Awaitable[None]]) -> None:
    async def run() -> None:
        reviewers, held = Reviewers(), Held()
        try:
            await story(reviewers, held)
        finally:
            for given in list(held.began):
                held.let_go(given)
            reviewers.stop()

    asyncio.run(run())


async def begun(
    reviewers: Reviewers, held: Held, *bodies: bytes
) -> list[asyncio.Task[bytes]]:
    """Start reviews in this order, without waiting for an answer."""
    asked = [asyncio.ensure_future(reviewers.run(held.answer, one)) for one in bodies]
    await asyncio.sleep(0)
    return asked


def test_tenant_delays_neither_cluster_policies_nor_other_tenants() -> None:
    async def story(reviewers: Reviewers, held: Held) -> None:
        flood = [body("a", str(n)) for n in range(POLICY_REVIEWS_OF_NAMESPACE_MAX)]
        waiting = await begun(reviewers, held, *flood)
        others = [body(""), body("b")]
        for asked, given in zip(
            await begun(reviewers, held, *others), others, strict=True
        ):
            held.let_go(given)
            assert await asyncio.wait_for(asked, HANG_S) == given
        assert held.began[0] == flood[0]
        assert not {*flood[1:]} & {*held.began}
        for given in flood:
            held.let_go(given)
        assert await asyncio.gather(*waiting) == flood

    told(story)


def test_tenants_release_a_thread_and_take_turns() -> None:
    async def story(reviewers: Reviewers, held: Held) -> None:
        tenants = POLICY_REVIEW_THREADS - 1
        first = [body(f"t{n}", "1") for n in range(tenants)]
        second = [body("t0", "2"), body("late", "1"), body("t0", "3")]
        asked = await begun(reviewers, held, *first, *second)
        (admin,) = await begun(reviewers, held, body(""))
        held.let_go(body(""))
        assert await asyncio.wait_for(admin, HANG_S) == body("")
        assert sorted(held.began) == sorted([*first, body("")])
        # t1 keeps running; the thread of t0 goes to a namespace that has not had a
        # turn.
        for number, given in enumerate((first[0], second[0], second[1])):
            held.let_go(given)
            await asyncio.wait_for(asked[[*first, *second].index(given)], HANG_S)
            held.wait_for(len(first) + 2 + number)
        assert held.began[-3:] == second
        for given in (*first, *second):
            held.let_go(given)
        await asyncio.gather(*asked)

    told(story)


@pytest.mark.parametrize("namespaces", [1, 100])
def test_slots_are_shared(namespaces: int) -> None:
    most = (
        POLICY_REVIEWS_OF_NAMESPACE_MAX
        if namespaces == 1
        else NAMESPACED_POLICY_REVIEWS_MAX
    )

    async def story(reviewers: Reviewers, held: Held) -> None:
        asked = await begun(
            reviewers, held, *(body(f"n{n % namespaces}", str(n)) for n in range(most))
        )
        with pytest.raises(Full):
            await reviewers.run(held.answer, body("n0", "more"))
        own = POLICY_REVIEWS_MAX - NAMESPACED_POLICY_REVIEWS_MAX
        asked += await begun(reviewers, held, *(body("", str(n)) for n in range(own)))
        await asyncio.sleep(0)
        assert not any(one.done() for one in asked)

    told(story)


def test_abandoned_review_frees_its_slot() -> None:
    async def story(reviewers: Reviewers, held: Held) -> None:
        first, gone, last = body("a", "1"), body("a", "2"), body("a", "3")
        running, left, kept = await begun(reviewers, held, first, gone, last)
        left.cancel()
        await asyncio.sleep(0)
        held.let_go(first)
        held.let_go(last)
        done = await asyncio.wait_for(asyncio.gather(running, kept), HANG_S)
        assert list(done) == [
            first,
            last,
        ]
        assert gone not in held.began

    told(story)
