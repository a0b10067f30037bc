"""Long evaluations yield to other reviews."""

import pytest

from kyverno_mp.errors import Preempted
from kyverno_mp.limits import (
    INLINE_STARVED_NS_MAX,
    INLINE_STARVED_SLICE_NS,
    THREAD_PAUSE_NS,
    THREAD_SLICE_NS,
)
from kyverno_mp.webhook.review.pace import EventLoopPace, LongEvaluations
from tests.waiting import real_ns


class Clock:
    """A clock that only advances during a sleep."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.slept_ns: list[int] = []

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept_ns.append(round(seconds * 1e9))
        self.now_ns += self.slept_ns[-1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def long_evaluations(clock: Clock) -> LongEvaluations:
    return LongEvaluations(clock.monotonic_ns, clock.sleep)


def test_event_loop_uses_one_slice() -> None:
    """A long review gets little more than a slice in the event loop."""
    ran_ns = iter((70, 70 + INLINE_STARVED_SLICE_NS // 4, 70 + INLINE_STARVED_SLICE_NS))
    pace = EventLoopPace(1_000, lambda: next(ran_ns))
    pace.next_slice(2_000)
    assert pace.slice_ends_ns == 2_000 + INLINE_STARVED_SLICE_NS
    now_ns = pace.slice_ends_ns
    pace.next_slice(now_ns)
    assert pace.slice_ends_ns == now_ns + INLINE_STARVED_SLICE_NS * 3 // 4
    with pytest.raises(Preempted):
        pace.next_slice(pace.slice_ends_ns)


def test_busy_machine_does_not_keep_a_review_in_the_event_loop() -> None:
    pace = EventLoopPace(1_000, lambda: 70)
    pace.next_slice(2_000)
    assert pace.slice_ends_ns > 2_000
    with pytest.raises(Preempted):
        pace.next_slice(1_000 + INLINE_STARVED_NS_MAX)


@pytest.mark.parametrize(
    "slice_ends_ns", [0, 1_000, real_ns()], ids=["never", "past", "now"]
)
def test_oversized_work_leaves_the_event_loop_immediately(slice_ends_ns: int) -> None:
    """A failure means: the event loop waits for a call, or links a large rule."""
    pace = EventLoopPace(slice_ends_ns or 1, lambda: 70)
    with pytest.raises(Preempted):
        pace.make_room()


def test_single_thread_sleeps_after_each_slice_for_the_event_loop(
    long_evaluations: LongEvaluations, clock: Clock
) -> None:
    """A failure means: an evaluation that calls RE2 all the time stops the webhook."""
    with long_evaluations.pace() as pace:
        for ends in range(1, 4):
            assert pace.slice_ends_ns == clock.now_ns + THREAD_SLICE_NS
            pace.next_slice(pace.slice_ends_ns - 1)
            assert len(clock.slept_ns) == ends - 1
            clock.now_ns = pace.slice_ends_ns + 1
            pace.next_slice(clock.now_ns)
            assert clock.slept_ns == [THREAD_PAUSE_NS] * ends
    assert long_evaluations.count == 0


def test_each_thread_sleeps_a_slice_for_every_other(
    long_evaluations: LongEvaluations, clock: Clock
) -> None:
    with (
        long_evaluations.pace() as first,
        long_evaluations.pace() as second,
        long_evaluations.pace(),
    ):
        for pace in (first, second, first):
            clock.now_ns = max(clock.now_ns, pace.slice_ends_ns)
            pace.next_slice(clock.now_ns)
        assert long_evaluations.count == 2, (
            "the third has not outlasted its first slice"
        )
    assert clock.slept_ns == [THREAD_PAUSE_NS, THREAD_SLICE_NS, THREAD_SLICE_NS]
    assert long_evaluations.count == 0


def test_failed_thread_is_no_longer_counted(
    long_evaluations: LongEvaluations, clock: Clock
) -> None:
    def work() -> None:
        with long_evaluations.pace() as pace:
            clock.now_ns = pace.slice_ends_ns
            pace.next_slice(clock.now_ns)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert long_evaluations.count == 0
