"""A key is retried when its reconcile requests it, or after its back-off."""

import logging
import threading

import pytest

from kyverno_mp.errors import KubeUnavailable, LeaseLost
from kyverno_mp.queues.reconcile import Controllers, Request, Result
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from tests.unit.queues.turned_clock import TurnedClock
from tests.waiting import HANG_S

A = Request("a-controller", "x")
DOWN = KubeUnavailable("kube.unavailable", "the API server is away")
LOST = LeaseLost("kube.lease_lost", "lease kyverno is not held")


class Script:
    """A reconciler that returns the given results."""

    def __init__(self, *outcomes: Result | Exception) -> None:
        self.outcomes = list(outcomes)
        self.keys: list[str] = []

    def reconcile(self, key: str) -> Result:
        self.keys.append(key)
        outcome = self.outcomes.pop(0) if self.outcomes else Result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Run:
    """One controller with its queue and its counters."""

    def __init__(self, *outcomes: Result | Exception) -> None:
        self.clock = TurnedClock()
        self.queue: WorkQueue[Request] = WorkQueue(
            depth_max=10,
            backoff=Backoff(least_s=1, most_s=4),
            clock_s=self.clock.monotonic_s,
        )
        self.script = Script(*outcomes)
        self.counted: list[tuple[str, int | None]] = []
        self.defects: list[str] = []
        self.controllers = Controllers(
            self.queue,
            {A.controller: self.script},
            lambda *counted: self.counted.append(counted),
            self.defects.append,
        )

    def pauses(self, most: int = 5) -> list[float]:
        """Add the key, and return the delay before each of its next runs."""
        self.queue.add(A)
        self.controllers.work_due()
        found = []
        for _ in range(most):
            seen, waited = len(self.script.keys), 0.0
            while len(self.script.keys) == seen and waited < 20:
                self.clock.turn(0.5)
                waited += 0.5
                self.controllers.work_due()
            if waited >= 20:
                break
            found.append(waited)
        return found


def test_key_is_requeued_if_its_result_asks_for_it() -> None:
    assert Run().pauses() == []
    assert Run(Result(after_s=3), Result(after_s=7)).pauses() == [3, 7]


@pytest.mark.parametrize("outcome", [DOWN, LOST, Result(retry=True)])
def test_failed_reconcile_is_retried_and_counted(
    outcome: Result | Exception,
) -> None:
    run = Run(*[outcome] * 4, Result(after_s=9), outcome)
    assert run.pauses(6) == [1, 2, 4, 4, 9, 1], "a success begins the back-off again"
    assert run.counted == [
        *((A.controller, number) for number in (0, 1, 2, 3)),
        (A.controller, None),
        (A.controller, 0),
        (A.controller, None),
    ]


def test_unavailable_dependency_is_logged_with_its_controller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Run(DOWN, LOST).pauses(1)
    assert caplog.messages == ["a-controller: the API server is away"]


def test_event_during_a_reconcile_causes_another_one() -> None:
    run = Run()

    class Adds(Script):
        def reconcile(self, key: str) -> Result:
            if not self.keys:
                run.queue.add(A)
            return super().reconcile(key)

    script = Adds(Result(after_s=60))
    controllers = Controllers(run.queue, {A.controller: script})
    run.queue.add(A)
    assert controllers.work_due() == 2
    assert script.keys == ["x", "x"]


def test_defect_is_logged_counted_and_retried_with_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A defect does not end a thread, and the delays keep it from flooding the log."""
    run = Run(*[ZeroDivisionError("one by zero")] * 3)
    assert run.pauses(4)[:3] == [1.0, 2.0, 4.0]
    assert run.defects == [A.controller] * 3
    assert run.counted == [(A.controller, None)], "of the fourth, which succeeded"
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert "Traceback" in caplog.text
    assert "a-controller: unexpected error with key x" in caplog.text


def test_backoff_is_reset_after_a_success() -> None:
    run = Run(ZeroDivisionError(), Result(after_s=1), ZeroDivisionError())
    assert run.pauses(3) == [1.0, 1.0, 1.0]


def test_defect_with_one_key_does_not_affect_the_others() -> None:
    run = Run(ZeroDivisionError())
    run.queue.add(A)
    run.queue.add(Request(A.controller, "y"))
    assert run.controllers.work_due() == 2
    assert run.script.keys == ["x", "y"]


def test_workers_stop_with_the_queue() -> None:
    run = Run()
    thread = threading.Thread(target=run.controllers.work, daemon=True)
    thread.start()
    run.queue.shut_down()
    thread.join(HANG_S)
    assert not thread.is_alive()
