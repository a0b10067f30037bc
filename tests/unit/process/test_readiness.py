"""Which facts take a pod out of service, and which restart it."""

import pytest

from kyverno_mp.process.readiness import WorkerFacts, generation_served, judge
from kyverno_mp.process.supervisor_status import ProcessState, SupervisorStatus

BOARD = SupervisorStatus(pid=1, processes=(ProcessState("webhook", 2),))
S = 1_000_000_000


def worker(generation: int, heartbeat_ns: int = 100 * S) -> WorkerFacts:
    return WorkerFacts("w", generation, heartbeat_ns)


@pytest.mark.parametrize(
    ("supervisor", "published", "workers", "words"),
    [
        (BOARD, 7, [worker(7), worker(7)], ""),
        (BOARD, 7, [worker(7), worker(6)], "w serves generation 6, published is 7"),
        (BOARD, 7, [worker(7)], "1 of 2 webhook workers run"),
        (BOARD, 0, [worker(0), worker(0)], "no snapshot has been published"),
        (BOARD, 7, [worker(7), worker(7, 1)], "w is silent"),
        (BOARD, 7, [worker(7), worker(7, 0)], ""),
        (None, 7, [worker(7), worker(7)], "the supervisor has not reported"),
        (SupervisorStatus(pid=1, draining=True), 7, [worker(7), worker(7)], "draining"),
    ],
)
def test_ready_only_when_every_worker_serves_what_was_published(
    supervisor: SupervisorStatus | None,
    published: int,
    workers: list[WorkerFacts],
    words: str,
) -> None:
    health = judge(supervisor, published, workers, expected=2, now_ns=101 * S)
    assert " / ".join(health.unready) == words
    assert health.unlive == ()


@pytest.mark.parametrize(
    ("name", "unlive"), [("webhook", True), ("leader", False), ("health", False)]
)
def test_only_a_webhook_crash_loop_asks_for_a_restart(name: str, unlive: bool) -> None:  # noqa: FBT001 - a column of the table
    supervisor = SupervisorStatus(
        pid=1, processes=(ProcessState(name, 2, 9, crash_loop=True),)
    )
    health = judge(supervisor, 7, [worker(7), worker(7)], expected=2, now_ns=101 * S)
    assert health.degraded == (f"{name} is in a crash loop",)
    assert bool(health.unlive) is unlive
    assert health.unready == ()


def test_the_generation_served_is_that_of_the_slowest_worker() -> None:
    assert generation_served([worker(7), worker(5)]) == 5
    assert generation_served([]) == 0
