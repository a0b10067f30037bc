"""A key is processed by one worker at a time, and none is lost.

The expected behaviour is that of client-go's work queue, with one entry per key.
"""

import os
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from tests.unit.queues.turned_clock import TurnedClock
from tests.waiting import HANG_S

KEYS = "abc"
STEP = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(KEYS), st.just(0.0)),
    st.tuples(st.just("add"), st.sampled_from(KEYS), st.sampled_from([0.5, 1.0, 7.0])),
    st.tuples(st.just("get"), st.just(""), st.just(0.0)),
    st.tuples(st.just("done"), st.sampled_from(KEYS), st.just(0.0)),
    st.tuples(st.just("turn"), st.just(""), st.sampled_from([0.25, 1.0, 5.0])),
)


def queue_of(
    clock: TurnedClock, depth_max: int = 100, backoff: Backoff | None = None
) -> WorkQueue[str]:
    return WorkQueue(depth_max=depth_max, backoff=backoff, clock_s=clock.monotonic_s)


def drain(queue: WorkQueue[str]) -> list[str]:
    found = []
    while (key := queue.get(0)) is not None:
        queue.done(key)
        found.append(key)
    return found


class Model:
    """A simple model of the queue: the due time of each pending key."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.queue = queue_of(self.clock)
        self.owed: dict[str, float] = {}
        self.held: set[str] = set()

    def due(self) -> set[str]:
        return {
            key
            for key, at in self.owed.items()
            if at <= self.clock.passed_s and key not in self.held
        }

    def add(self, key: str, delay_s: float) -> None:
        assert self.queue.add_after(key, delay_s)
        at = self.clock.passed_s + delay_s
        self.owed[key] = min(at, self.owed.get(key, at))

    def get(self) -> None:
        due = self.due()
        key = self.queue.get(0)
        if key is None:
            assert not due, "what is due is given"
            return
        assert key in due, "nothing is given before its time, or to two at once"
        assert self.owed[key] == min(self.owed[one] for one in due), "in order"
        del self.owed[key]
        self.held.add(key)

    def done(self, key: str) -> None:
        if key in self.held:
            self.held.remove(key)
            self.queue.done(key)


@given(st.lists(STEP, max_size=60))
def test_each_key_is_returned_when_due_and_to_one_worker(
    steps: Sequence[tuple[str, str, float]],
) -> None:
    model = Model()
    for what, key, seconds in steps:
        if what == "add":
            model.add(key, seconds)
        elif what == "get":
            model.get()
        elif what == "done":
            model.done(key)
        else:
            model.clock.turn(seconds)
        assert model.queue.known_count == len(model.owed.keys() | model.held)
        assert model.queue.depth == len(model.due())
    for key in KEYS:
        model.done(key)
    model.clock.turn(100)
    left = set(model.owed)
    assert sorted(drain(model.queue)) == sorted(left)
    assert model.queue.known_count == 0


def test_key_added_during_processing_is_processed_again() -> None:
    queue = queue_of(TurnedClock())
    for _ in range(3):
        queue.add("a")
    assert queue.get(0) == "a"
    for _ in range(3):
        queue.add("a")
    assert queue.get(0) is None
    queue.done("a")
    assert drain(queue) == ["a"]


def test_keys_are_returned_in_the_order_added() -> None:
    queue = queue_of(TurnedClock())
    for key in "cabcab":
        queue.add(key)
    assert drain(queue) == ["c", "a", "b"]


def test_earliest_time_wins() -> None:
    clock = TurnedClock()
    queue = queue_of(clock)
    queue.add_after("a", 5)
    queue.add_after("a", 1)
    queue.add_after("a", 9)
    clock.turn(0.99)
    assert drain(queue) == []
    clock.turn(0.01)
    assert drain(queue) == ["a"]
    clock.turn(100)
    assert drain(queue) == []


@given(
    st.floats(0.001, 2),
    st.floats(2, 100),
    st.integers(1, 2000),
)
def test_backoff_of_a_key_doubles_up_to_the_limit(
    least_s: float, most_s: float, failures: int
) -> None:
    backoff = Backoff(least_s=least_s, most_s=most_s)
    pause_s = backoff.pause_s(failures)
    assert least_s <= pause_s <= most_s
    assert backoff.pause_s(1) == least_s
    following_s = backoff.pause_s(failures + 1)
    assert following_s in (most_s, pytest.approx(2 * pause_s))


def test_each_key_has_a_separate_backoff_until_forgotten() -> None:
    clock = TurnedClock()
    queue = queue_of(clock, backoff=Backoff(least_s=1, most_s=5))
    pauses = []
    for _ in range(5):
        queue.add("a")
        key = queue.get(0)
        assert key == "a"
        pauses.append(queue.retry(key))
        queue.done(key)
        assert drain(queue) == []
        clock.turn(pauses[-1] - 0.01)
        assert drain(queue) == []
        clock.turn(0.01)
        assert drain(queue) == ["a"]
    assert pauses == [1, 2, 4, 5, 5]
    assert queue.failures("a") == 5
    assert queue.retry("b") == 1
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") == 1


def test_waiting_key_is_processed_when_added() -> None:
    queue = queue_of(TurnedClock(), backoff=Backoff(least_s=60, most_s=60))
    queue.retry("a")
    assert drain(queue) == []
    queue.add("a")
    assert drain(queue) == ["a"]


def test_end_of_a_common_cause_ends_every_backoff() -> None:
    """Also that of a key whose next attempt is running."""
    queue = queue_of(TurnedClock(), backoff=Backoff(least_s=1, most_s=300))
    for _ in range(9):
        queue.retry("a")
    queue.add("b")
    assert queue.get(0) == "b"
    queue.retry("b")
    queue.hasten()
    assert drain(queue) == ["a"]
    queue.done("b")
    assert drain(queue) == []
    assert queue.retry("a") == queue.retry("b") == 1


def test_full_queue_rejects_and_counts_new_keys() -> None:
    """Known keys are always accepted, so a full queue loses no pending key."""
    clock = TurnedClock()
    queue = queue_of(clock, depth_max=3)
    assert queue.add("a")
    assert queue.get(0) == "a"
    assert queue.add("b")
    assert queue.add_after("c", 1)
    assert not queue.add("d")
    assert not queue.add_after("e", 1)
    assert queue.dropped == 2
    assert queue.known_count == 3
    assert queue.depth == 1
    for key in "abc":
        assert queue.add(key)
    queue.retry("a")
    queue.done("a")
    assert queue.dropped == 2
    assert sorted(drain(queue)) == ["a", "b", "c"]
    assert queue.add("d")


def test_stopped_queue_drains() -> None:
    clock = TurnedClock()
    queue = queue_of(clock)
    for key in "ab":
        queue.add(key)
    queue.add_after("later", 1)
    assert queue.get(0) == "a"
    queue.add("a")
    queue.shut_down()
    assert not queue.add("new")
    assert queue.known_count == 2
    assert queue.get() == "b"
    queue.done("b")
    assert queue.get() is None
    assert queue.known_count == 1, "a worker has a key"
    queue.done("a")
    assert queue.get() == "a"
    queue.done("a")
    assert queue.known_count == 0
    clock.turn(10)
    assert queue.get() is None


def test_stopped_queue_without_drain_returns_nothing() -> None:
    queue = queue_of(TurnedClock())
    for key in "ab":
        queue.add(key)
    assert queue.get(0) == "a"
    queue.add("a")
    queue.shut_down(drain=False)
    queue.done("a")
    assert queue.get() is None
    assert queue.known_count == 0


def test_rescheduled_keys_do_not_accumulate() -> None:
    clock = TurnedClock()
    queue = queue_of(clock)
    for _ in range(1000):
        queue.add_after("a", 3600)
        queue.add("a")
        assert drain(queue) == ["a"]
    assert len(queue._heap) < 100


def test_waiting_worker_is_woken_by_a_key_and_by_the_end() -> None:
    queue: WorkQueue[str] = WorkQueue(depth_max=10)
    found: list[str | None] = []
    woken = threading.Event()

    def work() -> None:
        while True:
            key = queue.get()
            found.append(key)
            woken.set()
            if key is None:
                return
            queue.done(key)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    queue.add_after("late", 2 * HANG_S)
    queue.add_after("soon", 0.05)
    assert woken.wait(HANG_S)
    queue.shut_down()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert found == ["soon", None]


def test_concurrent_workers_never_share_a_key_and_lose_none() -> None:
    queue: WorkQueue[int] = WorkQueue(depth_max=1000)
    added = [0] * 20
    seen = [0] * 20
    busy: set[int] = set()
    clashes: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                if key in busy:
                    clashes.append(key)
                busy.add(key)
                seen[key] = added[key]
            os.sched_yield()
            with lock:
                busy.discard(key)
            queue.done(key)

    def fill() -> None:
        for number in range(600):
            with lock:
                added[number % 20] += 1
            queue.add(number % 20)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    fillers = [threading.Thread(target=fill) for _ in range(3)]
    for thread in (*workers, *fillers):
        thread.start()
    for thread in fillers:
        thread.join(HANG_S)
    queue.shut_down()
    for thread in workers:
        thread.join(HANG_S)
    assert queue.known_count == 0
    assert clashes == []
    # The last run of each key started after all its changes were added.
    assert seen == added
