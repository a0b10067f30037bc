"""Which conditions make a pod unready, and which restart it."""

from typing import Any

import pytest

from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.pool.health import PoolHealth
from kyverno_mp.process.supervision.readiness import (
    LagTimes,
    WorkerFacts,
    generation_served,
    pod_health,
    with_pools,
    without_policies,
)
from kyverno_mp.process.supervision.status import ProcessState, SupervisorStatus

BOARD = SupervisorStatus(pid=1, processes=(ProcessState("webhook", 2),))
S = 1_000_000_000


def worker(
    generation: int, heartbeat_ns: int = 100 * S, lagging_ns: int = 0
) -> WorkerFacts:
    return WorkerFacts("w", generation, heartbeat_ns, lagging_ns)


@pytest.mark.parametrize(
    ("supervisor", "published", "workers", "words"),
    [
        (BOARD, 7, [worker(7), worker(7)], ""),
        (
            BOARD,
            7,
            [worker(7), worker(6, lagging_ns=6 * S)],
            "w serves generation 6, published is 7",
        ),
        (BOARD, 7, [worker(7), worker(6, lagging_ns=4 * S)], ""),
        (BOARD, 7, [worker(6, 1, lagging_ns=4 * S), worker(7)], "w is silent"),
        (BOARD, 7, [worker(7), worker(0)], "w serves generation 0, published is 7"),
        (BOARD, 7, [worker(7)], "1 of 2 workers run"),
        (BOARD, 0, [worker(0), worker(0)], "no snapshot has been published"),
        (BOARD, 7, [worker(7), worker(7, 1)], "w is silent"),
        (BOARD, 7, [worker(7), worker(7, 0)], ""),
        (None, 7, [worker(7), worker(7)], "the supervisor has not reported"),
        (SupervisorStatus(pid=1, draining=True), 7, [worker(7), worker(7)], "draining"),
    ],
)
def test_ready_when_all_workers_serve_and_none_lags_long(
    supervisor: SupervisorStatus | None,
    published: int,
    workers: list[WorkerFacts],
    words: str,
) -> None:
    health = pod_health(supervisor, published, workers, expected=2, now_ns=101 * S)
    assert " / ".join(health.unready) == words
    assert health.unlive == ()


@pytest.mark.parametrize(
    ("name", "unlive"), [("webhook", True), ("leader", False), ("health", False)]
)
def test_only_a_webhook_crash_loop_requires_a_restart(name: str, unlive: bool) -> None:  # noqa: FBT001 - a column of the table
    supervisor = SupervisorStatus(
        pid=1, processes=(ProcessState(name, 2, 9, crash_loop=True),)
    )
    health = pod_health(
        supervisor, 7, [worker(7), worker(7)], expected=2, now_ns=101 * S
    )
    assert health.degraded == (f"{name} is in a crash loop",)
    assert bool(health.unlive) is unlive
    assert health.unready == ()


def test_served_generation_is_the_slowest_workers() -> None:
    assert generation_served([worker(7), worker(5)]) == 5
    assert generation_served([]) == 0


def test_worker_lags_while_it_serves_an_old_generation() -> None:
    times = LagTimes()
    assert times.lagging_ns({1: 6, 2: 7}, 7, now_ns=10 * S) == {1: 0}
    assert times.lagging_ns({1: 6, 2: 7}, 9, now_ns=14 * S) == {1: 4 * S, 2: 0}
    # A worker that makes progress is not stuck, however fast the policies change.
    assert times.lagging_ns({1: 8, 2: 7}, 9, now_ns=18 * S) == {1: 0, 2: 4 * S}
    assert times.lagging_ns({1: 9, 2: 9}, 9, now_ns=20 * S) == {}
    assert times.lagging_ns({1: 9}, 10, now_ns=30 * S) == {1: 0}
    # A new worker serves no generation yet.
    assert times.lagging_ns({3: 0}, 10, now_ns=40 * S) == {3: 0}
    assert times.lagging_ns({3: 0}, 10, now_ns=43 * S) == {3: 3 * S}


def crash_loop(name: str) -> SupervisorStatus:
    return SupervisorStatus(
        pid=1, processes=(ProcessState(name, 2, 9, crash_loop=True),)
    )


def test_pool_problems_do_not_affect_the_webhook() -> None:
    health = pod_health(crash_loop("pool"), 7, [worker(7)], expected=1, now_ns=101 * S)
    pools = {"pool": PoolHealth("pool", reasons=("no list",)), "other": None}
    health = with_pools(health, pools, expected=1)
    assert health.unready == ()
    assert health.unlive == ()
    assert health.degraded == (
        "pool is in a crash loop",
        "other has not reported",
        "pool: no list",
    )


def test_pool_pods_depend_on_the_pools() -> None:
    health = pod_health(BOARD, 7, [], expected=0, now_ns=101 * S)
    well = {"pool": PoolHealth("pool")}
    assert with_pools(health, well, expected=0).unready == ()
    silent = with_pools(health, {"pool": None}, expected=0)
    assert silent.unready == ("pool has not reported",)
    looping = pod_health(crash_loop("pool"), 7, [], expected=0, now_ns=101 * S)
    assert looping.unready == ("pool is in a crash loop",)
    assert looping.unlive == ()


def test_dashboard_crash_loop_does_not_affect_readiness() -> None:
    for expected, workers in ((0, []), (1, [worker(7)])):
        health = pod_health(
            crash_loop("dashboard"), 7, workers, expected=expected, now_ns=101 * S
        )
        assert (health.unready, health.unlive) == ((), ())
        assert health.degraded == ("dashboard is in a crash loop",)


def test_only_rejected_policies_admit_everything_without_a_word() -> None:
    """A pod without a cluster that has no valid policy must not be called ready."""

    def policy(name: str, **facts: Any) -> PolicyStatus:
        facts = {"ready": False, **facts}
        return PolicyStatus(
            "ClusterPolicy", "", name, message="", rule_count=1, **facts
        )

    assert without_policies([]) == ()
    assert without_policies([policy("a"), policy("b")]) == (
        "all 2 policies are rejected, none is in force",
    )
    for partly in (
        policy("b", ready=True),
        policy("b", in_force="{}"),
        policy("b", rules=(RuleStatus("r", "validate"),)),
    ):
        assert without_policies([policy("a"), partly]) == ()


def test_policies_that_cannot_be_decoded_degrade_the_pod() -> None:
    workers = [worker(7), WorkerFacts("w", 7, 100 * S, undecoded=2)]
    health = pod_health(BOARD, 7, workers, expected=2, now_ns=101 * S)
    assert not health.unready
    (problem,) = health.degraded
    assert problem.startswith("2 stored policies cannot be decoded")
    assert not pod_health(BOARD, 7, [worker(7)], expected=1, now_ns=101 * S).degraded
