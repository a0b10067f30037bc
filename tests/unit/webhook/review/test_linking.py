"""Linking rules yields to other reviews, in the event loop and in a thread.

A failure means: after a policy of many or large rules was created, the first review
that they match blocks all others while the rules are linked.
"""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import Preempted
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import (
    INLINE_CROWDED_NS,
    INLINE_CROWDED_SLICE_NS,
    INLINE_LINK_BYTES_MAX,
    INLINE_SLICE_NS,
)
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.pace import EventLoopPace
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.fuzz.bench import segment_of
from tests.unit.webhook.stub import StubPlan, StubRecords, review
from tests.waiting import FAR_NS, HANG_S, HandTimers, still_ns

FAIL = frozenset({"Fail"})
REQUEST = decode(review())


class Counting:
    """A clock that advances 1 ms per read, and a pace with 10 ms slices on it."""

    def __init__(self, *, is_last: bool = False) -> None:
        self.now_ns = 0
        self.slices: list[int] = []
        """The number of reads in each slice."""
        self.slice_ends_ns = 10_000_000
        self._is_last = is_last

    def look(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def next_slice(self, now_ns: int) -> None:
        if now_ns <= self.slice_ends_ns:
            return
        if self._is_last:
            raise Preempted("test.preempted", "no more")
        self.slices.append(now_ns // 1_000_000 - sum(self.slices))
        self.slice_ends_ns = now_ns + 10_000_000

    def make_room(self) -> None:
        raise Preempted("test.preempted", "no room")


def planner(rules: list[Any], look: Callable[[], int]) -> ValidationPlanner:
    named = [
        {
            "name": f"r{number}",
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "validate": {"message": "m", "pattern": pattern},
        }
        for number, pattern in enumerate(rules)
    ]
    policy = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"background": False, "rules": named},
    }
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=look)
    source = SegmentSource(segment_of(orjson.dumps(policy).decode()), link_rule)
    return ValidationPlanner(Engine(ClusterData(), clock), source)


def test_many_rules_are_linked_in_slices() -> None:
    pace = Counting()
    planned = planner([{"metadata": {"name": "?*"}}] * 100, pace.look)
    assert planned.plan(REQUEST, FAIL, "", pace) is not None
    assert len(pace.slices) > 5
    # Several slices, without repeated pauses after the first one has ended.
    assert min(pace.slices) >= 10
    again = Counting(is_last=True)
    assert planned.plan(REQUEST, FAIL, "", again) is not None, "all are linked"


@pytest.mark.parametrize("large", [True, False])
def test_event_loop_never_links_a_large_rule(large: bool) -> None:  # noqa: FBT001 - a parameter
    pattern = {"metadata": {"name": "x" * (INLINE_LINK_BYTES_MAX if large else 1)}}
    pace = Counting(is_last=True)
    planned = planner([pattern], pace.look)
    if large:
        with pytest.raises(Preempted):
            planned.plan(REQUEST, FAIL, "", pace)
    else:
        assert planned.plan(REQUEST, FAIL, "", pace) is not None


def test_linking_thread_takes_turns() -> None:
    paces: list[Pace | None] = []

    class Evaluate:
        def plan(
            self,
            request: Request,
            failure_policies: frozenset[str],
            policy_key: str,
            pace: Pace | None = None,
        ) -> StubPlan:
            del request, failure_policies, policy_key
            paces.append(pace)
            if type(pace) is EventLoopPace:
                pace.make_room()
            return StubPlan()

    async def run() -> bytes:
        lane = Lane(asyncio.get_running_loop(), 1, 1, still_ns)
        dependencies = Dependencies(
            records=StubRecords(), monotonic_ns=still_ns, long_lane=lane
        )
        service = Service(dependencies, handlers_of(Evaluate()))
        answer = service.answer(SHARED[b"/validate/fail"], b"", review())
        assert isinstance(answer, asyncio.Future)
        found: bytes = await answer
        lane.stop()
        return found

    assert orjson.loads(asyncio.run(run()))["response"]["allowed"]
    first, second = paces
    assert type(first) is EventLoopPace
    assert second is not None
    assert type(second) is not EventLoopPace


@pytest.mark.parametrize("in_plan", [True, False])
def test_concurrent_long_reviews_get_short_slices(in_plan: bool) -> None:  # noqa: FBT001 - a parameter
    """Otherwise each of many connections blocks the event loop for a slice."""
    clock = Counting()
    slices: list[int] = []

    class Long(StubPlan):
        def enforce(
            self, deadline_ns: int, pace: Pace | None = None
        ) -> list[PolicyResponse]:
            del deadline_ns
            take_all(pace)
            return []

    def take_all(pace: Pace | None) -> None:
        if type(pace) is EventLoopPace:
            slices.append(pace.slice_ends_ns - clock.now_ns)
            clock.now_ns = pace.slice_ends_ns
            pace.make_room()

    class Evaluate:
        def plan(
            self,
            request: Request,
            failure_policies: frozenset[str],
            policy_key: str,
            pace: Pace | None = None,
        ) -> StubPlan:
            del request, failure_policies, policy_key
            if in_plan:
                take_all(pace)
                return StubPlan()
            return Long()

    async def run() -> None:
        lane = Lane(asyncio.get_running_loop(), 1, 100, still_ns)
        dependencies = Dependencies(
            records=StubRecords(), monotonic_ns=lambda: clock.now_ns, long_lane=lane
        )
        service = Service(dependencies, handlers_of(Evaluate()))
        for wait_ns in [0] * 10 + [INLINE_CROWDED_NS + 1]:
            clock.now_ns += wait_ns
            answer = service.answer(SHARED[b"/validate/fail"], b"", review())
            assert isinstance(answer, asyncio.Future)
            await answer
        lane.stop()

    asyncio.run(run())
    whole, short = INLINE_SLICE_NS, INLINE_CROWDED_SLICE_NS
    assert slices == [whole, *[short] * 9, whole]
    assert whole + 15 * short < 100_000_000


def test_reviews_past_their_deadline_are_answered_one_per_round() -> None:
    """Otherwise all waiting reviews block the event loop when their time runs out."""
    order: list[str] = []
    gate = threading.Event()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        timers = HandTimers(loop)
        lane = Lane(loop, 1, 100, still_ns)

        def late(_error: object) -> bytes:
            order.append("late")
            if order.count("late") == 1:
                # The others do not delay a new review.
                loop.call_soon(order.append, "another")
            return b"late"

        def wait(_pace: Pace) -> bytes:
            gate.wait(HANG_S)
            return b""

        waiting = [lane.run(wait, FAR_NS, late) for _ in range(20)]
        timers.ring()
        assert await asyncio.gather(*waiting) == [b"late"] * 20
        gate.set()
        lane.stop()

    asyncio.run(run())
    assert order.index("another") <= 2
