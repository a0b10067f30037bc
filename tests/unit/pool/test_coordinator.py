"""A pool works only while it holds its lease, and starts its work once per term."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventInfo, Events, Reference
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.pool import coordinator
from kyverno_mp.pool.coordinator import (
    Coordinator,
    HealthReasons,
    PoolPlace,
    Tools,
)
from kyverno_mp.pool.event_writer import EventWriter
from kyverno_mp.pool.health import PoolHealth, read_pool_health
from kyverno_mp.pool.metrics import PoolMetrics
from kyverno_mp.settings.settings import Settings
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import HANG_S, wait_for

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kyverno/leases/kyverno-pool"
S = 1_000_000_000


class Bench:
    """One coordinator, its clock and the state of its work."""

    def __init__(
        self, api: FakeApi, folder: Path, *, works_aside: bool = False
    ) -> None:
        self.now_s = 1000.0
        self.given: list[Tools] = []
        self.began: list[int] = []
        self.ended: list[int] = []
        self.ends: list[str] = []
        self.obeys = threading.Event()
        self.obeys.set()
        self.works = True
        client = api.client()
        objects = Objects(client)
        terms = Terms(namespace="kyverno", name="kyverno-pool", identity="one")
        self.election = Election(objects, terms, clock_ns=lambda: int(self.now_s * S))
        place = PoolPlace(
            name="pool",
            lease="kyverno-pool",
            settings=Settings(),
            runtime_dir=folder,
            pages=folder,
            snapshot=folder,
        )
        self.tools = Tools(
            place=place,
            client=client,
            election=self.election,
            events=Events(objects, "one"),
            successes=frozenset,
            metrics=PoolMetrics(),
        )
        self.woken = threading.Event()
        self.coordinator = Coordinator(
            self.tools,
            self.work,
            self.ends.append,
            lambda: self.now_s,
            self.woken.set,
            works_aside=works_aside,
        )

    def work(self, tools: Tools, stop: threading.Event) -> None:
        term = tools.election.terms_held
        self.given.append(tools)
        self.began.append(term)
        if not self.works:
            return
        stop.wait(HANG_S)
        self.obeys.wait(HANG_S)
        self.ended.append(term)

    def until(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            self.coordinator.tick()
            return condition()

        wait_for(holds)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


@pytest.fixture
def bench(api: FakeApi, tmp_path: Path) -> Iterator[Bench]:
    found = Bench(api, tmp_path)
    yield found
    found.obeys.set()
    found.coordinator.stop()


def take_away(api: FakeApi) -> None:
    """Let another replica take the lease."""
    spec = {"holderIdentity": "two", "renewTime": "x", "leaseDurationSeconds": 12}
    api.put(LEASE, spec=spec)


def test_standby_does_not_work(api: FakeApi, bench: Bench, tmp_path: Path) -> None:
    take_away(api)
    assert not bench.election.step()
    bench.coordinator.tick()
    assert not bench.coordinator.is_working
    assert bench.began == []
    assert read_pool_health(tmp_path, "pool") == PoolHealth("pool")


def test_work_aside_runs_while_another_program_holds_the_lease(
    api: FakeApi, tmp_path: Path
) -> None:
    """It may write only then, and never as the holder."""
    bench = Bench(api, tmp_path, works_aside=True)
    assert bench.election.step()
    bench.until(lambda: len(bench.given) == 1)
    assert not bench.given[0].is_aside
    take_away(api)
    bench.election.step()
    bench.until(lambda: len(bench.given) == 2)
    aside = bench.given[1]
    assert aside.is_aside
    assert aside.holds_lease()
    assert not bench.given[0].holds_lease()
    assert read_pool_health(tmp_path, "pool") == PoolHealth("pool")
    released = {"holderIdentity": "", "leaseDurationSeconds": 1}
    api.put(LEASE, spec=released)
    assert bench.election.step()
    assert not aside.holds_lease()
    bench.until(lambda: len(bench.given) == 3)
    assert not bench.given[2].is_aside
    assert bench.given[2].holds_lease()
    assert bench.ends == []
    bench.coordinator.stop()


def test_work_aside_that_ends_early_starts_again(api: FakeApi, tmp_path: Path) -> None:
    """It ends when it sees that the holder goes; another one may follow at once."""
    bench = Bench(api, tmp_path, works_aside=True)
    take_away(api)
    bench.election.step()
    bench.works = False
    bench.until(lambda: len(bench.given) > 1)
    assert bench.ends == []
    bench.coordinator.stop()


def test_it_looks_once_a_second_and_when_the_lease_expires(bench: Bench) -> None:
    """PERF: four looks a second in each of three pools took 0.3 % of a core."""
    assert bench.coordinator.pause_s == 1
    assert bench.election.step()
    bench.coordinator.tick()
    assert bench.coordinator.pause_s == 1
    bench.now_s += 9.75
    assert bench.coordinator.pause_s == 0.25, "the lease can be written until then"
    bench.now_s += 0.25
    bench.coordinator.tick()
    bench.until(lambda: not bench.coordinator.is_working)


def test_the_end_of_the_work_wakes_it(bench: Bench) -> None:
    assert bench.election.step()
    bench.obeys.clear()
    bench.coordinator.tick()
    bench.now_s += 100
    bench.coordinator.tick()
    assert not bench.woken.is_set()
    bench.obeys.set()
    assert bench.woken.wait(HANG_S)
    bench.coordinator.tick()
    assert not bench.coordinator.is_working


def test_a_new_problem_of_the_work_wakes_it() -> None:
    calls: list[str] = []
    health = HealthReasons(lambda: calls.append("wake"))
    for reasons in ([], ["one"], ["one"], ["two"], []):
        health(reasons)
    assert calls == ["wake"] * 3


def test_holder_works_until_its_lease_ends_and_in_its_next_term(
    api: FakeApi, bench: Bench, tmp_path: Path
) -> None:
    assert bench.election.step()
    bench.until(lambda: bench.began == [1])
    assert read_pool_health(tmp_path, "pool") == PoolHealth("pool", holds_lease=True)
    # The process was suspended for longer than the lease lasts.
    bench.now_s += 60
    assert not bench.tools.holds_lease()
    bench.until(lambda: bench.ended == [1] and not bench.coordinator.is_working)
    assert read_pool_health(tmp_path, "pool") == PoolHealth("pool")
    assert bench.election.step()
    bench.until(lambda: bench.began == [1, 2])
    assert bench.ends == []


def test_health_that_found_no_room_is_written_again(
    bench: Bench, tmp_path: Path
) -> None:
    """Although nothing changes afterwards: /healthz would lie for days."""
    record = tmp_path / "pool-pool.json"
    barred = [record, record.with_name(f"{record.name}.new")]
    for path in barred:
        path.mkdir()
    assert bench.election.step()
    bench.until(lambda: bench.began == [1])
    assert read_pool_health(tmp_path, "pool") is None
    for path in barred:
        path.rmdir()
    bench.coordinator.tick()
    assert read_pool_health(tmp_path, "pool") == PoolHealth("pool", holds_lease=True)


def test_each_term_has_separate_work(
    bench: Bench,
) -> None:
    """Data that the first term's work cached may be outdated."""
    assert bench.election.step()
    bench.until(lambda: bench.began == [1])
    bench.now_s += 60
    assert bench.election.step()
    bench.until(lambda: bench.began == [1, 2])
    assert bench.ended == [1], "never two at a time"


def test_work_of_an_earlier_term_may_not_write(bench: Bench) -> None:
    """It may still run when the lease is held again after a suspension."""
    assert bench.election.step()
    bench.until(lambda: bench.began == [1])
    assert bench.given[0].holds_lease()
    bench.obeys.clear()
    bench.now_s += 60
    assert bench.election.step()
    assert bench.ended == []
    assert not bench.given[0].holds_lease()
    bench.obeys.set()
    bench.until(lambda: bench.began == [1, 2])
    assert bench.given[1].holds_lease()
    assert not bench.given[0].holds_lease()


def test_work_that_does_not_stop_ends_with_the_process(bench: Bench) -> None:
    assert bench.election.step()
    bench.until(lambda: bench.began == [1])
    bench.obeys.clear()
    bench.now_s += 60
    bench.coordinator.tick()
    bench.now_s += 9
    bench.coordinator.tick()
    assert bench.ends == []
    bench.now_s += 2
    bench.coordinator.tick()
    assert bench.ends == ["its work still runs 10 s after the lease was lost"]


def test_work_that_ends_early_ends_the_process(bench: Bench) -> None:
    """The supervisor restarts it, and reports repeated exits as a crash loop."""
    coordinator = Coordinator(
        bench.tools, lambda _tools, _stop: None, bench.ends.append
    )
    assert bench.election.step()

    def ends() -> list[str]:
        coordinator.tick()
        return bench.ends

    wait_for(ends)
    assert bench.ends == ["its work ended unexpectedly"]


def test_work_can_end_when_it_notices_a_lost_lease(
    bench: Bench,
) -> None:
    ended = threading.Event()

    def watch(tools: Tools, stop: threading.Event) -> None:
        wait_for(lambda: stop.is_set() or not tools.holds_lease())
        ended.set()

    coordinator = Coordinator(bench.tools, watch, bench.ends.append)
    assert bench.election.step()
    coordinator.tick()
    bench.now_s += 60
    assert ended.wait(HANG_S)

    def is_over() -> bool:
        coordinator.tick()
        return not coordinator.is_working

    wait_for(is_over)
    assert bench.ends == []


def test_problems_of_the_work_are_the_pools_health(
    bench: Bench, tmp_path: Path
) -> None:
    assert bench.election.step()
    bench.until(lambda: bench.began == [1])
    bench.tools.health(["pods cannot be listed"])
    bench.coordinator.tick()
    found = read_pool_health(tmp_path, "pool")
    assert found is not None
    assert found.reasons == ("pods cannot be listed",)
    bench.tools.health([])
    bench.coordinator.tick()
    assert read_pool_health(tmp_path, "pool") == PoolHealth("pool", holds_lease=True)


def test_unreadable_lease_is_reported_after_a_minute(
    api: FakeApi, bench: Bench, tmp_path: Path
) -> None:
    bench.coordinator.tick()
    for _ in range(3):
        api.faults.append((r"leases/kyverno-pool", 403))
        bench.election.step()
        bench.coordinator.tick()
        bench.now_s += 31
    found = read_pool_health(tmp_path, "pool")
    assert found is not None
    assert found.reasons[0].startswith("lease kyverno-pool: ")
    assert "403" in found.reasons[0]
    bench.election.step()
    bench.coordinator.tick()
    assert read_pool_health(tmp_path, "pool") == PoolHealth("pool", holds_lease=True)


def test_stop_waits_for_the_work(bench: Bench) -> None:
    assert bench.coordinator.stop(), "there is none"
    assert bench.election.step()
    bench.until(lambda: bench.began == [1])
    bench.obeys.clear()
    assert not bench.coordinator.stop(0.05)
    bench.obeys.set()
    assert bench.coordinator.stop(10)
    assert bench.ended == [1]


@pytest.mark.parametrize(
    ("successes", "accepted"),
    [(None, False), (frozenset(), True), (frozenset({"other"}), False)],
)
def test_success_events_are_configurable(
    bench: Bench, successes: frozenset[str] | None, *, accepted: bool
) -> None:
    """The settings generateSuccessEvents and successEventActions apply to all pools."""
    tools = coordinator._tools_of(
        bench.tools.place, bench.tools.client, lambda: successes, lambda: None
    )
    info = EventInfo(
        regarding=Reference("kyverno.io/v1", "ClusterPolicy", "p"),
        reason="PolicyApplied",
        action="Resource Generated",
        note="resource generated",
        controller="kyverno-generate",
    )
    assert tools.events.submit(info) == accepted
    assert tools.successes() == successes


def test_an_event_ends_the_pause_of_its_writer(api: FakeApi, bench: Bench) -> None:
    """Without events, it sleeps without end."""
    writer = EventWriter(bench.tools.events)
    writer.start()
    info = EventInfo(
        regarding=Reference("kyverno.io/v1", "ClusterPolicy", "p"),
        reason="PolicyError",
        action="None",
        note="broken",
        controller="kyverno-generate",
    )
    assert bench.tools.events.submit(info)
    wait_for(lambda: bench.tools.events.written)
    writer.stop()
    assert api.count("POST .*events") == 1
