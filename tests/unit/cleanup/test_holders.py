"""Despite lost leases and dead or suspended holders, objects are deleted once."""

import threading
from typing import Any

import pytest

from kyverno_mp.queues.clock import Clock
from tests.unit.cleanup.cluster import (
    Recorded,
    at,
    condition_of,
    config_map,
    controller,
    dependencies_of,
    held_for,
    names,
    policy,
    running_cleanup,
    serve_kinds,
    status_of,
)
from tests.unit.kube.fake_api import FakeApi
from tests.unit.queues.turned_clock import TurnedClock
from tests.waiting import HANG_S, wait_for

Json = Any
OBJECTS = 6
_ANSWERS = "process_request_thread"
"""In the names of the threads in which the fake API server answers."""


@pytest.mark.parametrize("writes", range(0, 40, 3))
def test_new_holder_continues_after_a_lost_lease_at_any_point(
    api: FakeApi, writes: int
) -> None:
    """Otherwise, the rest of a run would be postponed, or objects deleted twice."""
    serve_kinds(api)
    policy(api, schedule="@hourly")
    for number in range(OBJECTS):
        config_map(api, f"c{number}")
    first, second, clock = Recorded(), Recorded(), TurnedClock()
    clock.turn(3600)
    lost = dependencies_of(api, first, clock.clock, holds_lease=held_for(writes))
    with controller(api, lost) as one:
        one.settle()
    config_map(api, "younger", created_s=3700)
    clock.turn(120)
    with controller(api, dependencies_of(api, second, clock.clock)) as one:
        one.settle()
    deleted = [key[3] for key, _ in api.deletions]
    younger = (
        [] if "lastExecutionTime" in status_of(api) and _is_first(api) else ["younger"]
    )
    assert sorted(deleted) == sorted([*(f"c{n}" for n in range(OBJECTS)), *younger])
    total = "kyverno_cleanup_controller_deletedobjects_total"
    assert first.total(total) + second.total(total) == len(deleted)
    assert condition_of(api)["reason"] == "Succeeded"


def _is_first(api: FakeApi) -> bool:
    """Return whether the first holder did the run: only old objects are deleted."""
    return bool(status_of(api)["lastExecutionTime"] == at(3600))


def test_two_concurrent_holders_delete_nothing_twice(api: FakeApi) -> None:
    """A lease does not fence: a suspended holder may resume and continue."""
    serve_kinds(api)
    policy(api, schedule="@every 1s", created_s=0)
    for number in range(60):
        config_map(api, f"c{number}")
    both = [Recorded(), Recorded()]
    dependencies = [dependencies_of(api, one, Clock()) for one in both]
    with running_cleanup(dependencies[0]), running_cleanup(dependencies[1]):
        wait_for(lambda: not names(api))
    assert len(api.deletions) == 60
    total = "kyverno_cleanup_controller_deletedobjects_total"
    assert sum(one.total(total) for one in both) == 60


def test_run_ends_when_the_lease_is_lost(api: FakeApi) -> None:
    """Otherwise, a former holder would continue to write."""
    serve_kinds(api)
    before = set(threading.enumerate())
    held = threading.Event()
    held.set()
    recorded = Recorded()
    dependencies = dependencies_of(api, recorded, Clock(), holds_lease=held.is_set)
    with running_cleanup(dependencies) as thread:
        wait_for(lambda: recorded.health)
        assert recorded.health[-1] == []
        held.clear()
        thread.join(HANG_S)
        assert not thread.is_alive()
    # What does not run writes nothing. The threads of the API server have other names.
    left = [one.name for one in set(threading.enumerate()) - before]
    assert not [name for name in left if _ANSWERS not in name]
    policy(api)
    config_map(api, "late", labels={"cleanup.kyverno.io/ttl": "1s"})
    assert names(api) == ["a/late"]


def test_health_names_the_failures(api: FakeApi) -> None:
    """Otherwise, a clean-up that does nothing would look healthy."""
    serve_kinds(api)
    api.fault("GET /apis/kyverno.io/v2/cleanuppolicies", *[403] * 100)
    recorded = Recorded()
    with running_cleanup(dependencies_of(api, recorded, Clock())):
        wait_for(
            lambda: any("cleanuppolicies" in one[0] for one in recorded.health if one),
            HANG_S,
        )
