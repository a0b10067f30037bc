"""Evaluations that take long make room for the others."""

import pytest

from kyverno_mp.errors import Preempted
from kyverno_mp.limits import THREAD_SLICE_NS
from kyverno_mp.webhook.review.pace import EventLoopPace, LongEvaluations


class Clock:
    """Time that passes by sleeping only."""

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


def test_the_event_loop_has_one_slice() -> None:
    with pytest.raises(Preempted):
        EventLoopPace(5).next_slice(6)


def test_one_alone_never_sleeps(
    long_evaluations: LongEvaluations, clock: Clock
) -> None:
    with long_evaluations.pace() as pace:
        assert pace.slice_ends_ns == clock.now_ns + THREAD_SLICE_NS
        clock.now_ns = pace.slice_ends_ns + 1
        assert pace.next_slice(clock.now_ns) == clock.now_ns + THREAD_SLICE_NS
    assert clock.slept_ns == []
    assert long_evaluations.count == 0


def test_each_sleeps_a_slice_for_every_other(
    long_evaluations: LongEvaluations, clock: Clock
) -> None:
    with (
        long_evaluations.pace() as first,
        long_evaluations.pace() as second,
        long_evaluations.pace(),
    ):
        first.next_slice(clock.now_ns)
        second.next_slice(clock.now_ns)
        first.next_slice(clock.now_ns)
        assert long_evaluations.count == 2, (
            "the third has not outlasted its first slice"
        )
    assert clock.slept_ns == [THREAD_SLICE_NS] * 2
    assert long_evaluations.count == 0


def test_one_that_breaks_is_counted_no_more(
    long_evaluations: LongEvaluations, clock: Clock
) -> None:
    def work() -> None:
        with long_evaluations.pace() as pace:
            pace.next_slice(clock.now_ns)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert long_evaluations.count == 0
