"""Two replicas never assume at one time that they hold a lease."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Thread

import pytest

from kyverno_mp.errors import LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.followed import named
from kyverno_mp.kube.lease import HOLDER, LEASES, Election, Terms
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, wait_for

PATH = "/apis/coordination.k8s.io/v1/namespaces/kyverno/leases/kyverno"


class Clock:
    """One replica's clock since boot."""

    def __init__(self, at_s: float = 1000.0) -> None:
        self.at_s = at_s

    def __call__(self) -> int:
        return int(self.at_s * 1e9)


def election(api: FakeApi, name: str, clock: Clock) -> Election:
    terms = Terms(namespace="kyverno", name="kyverno", identity=name)
    wall = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    return Election(Objects(api.client()), terms, clock, lambda: wall)


def spec(api: FakeApi) -> dict[str, object]:
    (raw,) = api.objects.values()
    found: dict[str, object] = raw["spec"]
    return found


def test_first_replica_creates_it_with_upstreams_fields(api: FakeApi) -> None:
    one = election(api, "one", Clock())
    assert one.step()
    assert spec(api) == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 12,
        "acquireTime": "2026-01-02T03:04:05.006000Z",
        "renewTime": "2026-01-02T03:04:05.006000Z",
        "leaseTransitions": 0,
    }


def test_other_replica_acquires_it_only_after_its_duration(api: FakeApi) -> None:
    """The replicas' clocks differ by years, and neither reads the other's clock."""
    first, second = Clock(10), Clock(9_999_999)
    one, two = election(api, "one", first), election(api, "two", second)
    assert one.step()
    assert not two.step()
    second.at_s += 11.9
    assert not two.step()
    second.at_s += 0.2
    first.at_s += 12.1
    assert two.step()
    assert not one.holds()
    assert spec(api)["leaseTransitions"] == 1


def test_resumed_holder_must_not_write(api: FakeApi) -> None:
    """During SIGSTOP, the clock continues; the guard raises before any later write."""
    clock = Clock()
    one = election(api, "one", clock)
    one.step()
    clock.at_s += 9.9
    one.guard()
    clock.at_s += 0.2
    with pytest.raises(LeaseLost):
        one.guard()


def test_holder_stops_before_others_can_acquire(api: FakeApi) -> None:
    first, second = Clock(0), Clock(0)
    one, two = election(api, "one", first), election(api, "two", second)
    one.step()
    two.step()
    for _ in range(200):
        first.at_s += 0.1
        second.at_s += 0.1
        two.step()
        assert not (one.holds() and two.holds())
    assert two.holds()


def test_api_server_outage_ends_the_lease_only_at_its_deadline(
    api: FakeApi,
) -> None:
    clock = Clock()
    one = election(api, "one", clock)
    one.step()
    api.fault("PUT", 403)
    api.fault("GET", 403)
    clock.at_s += 5
    assert one.step()
    clock.at_s += 5.1
    assert not one.step()
    assert one.step()


def test_repeated_successful_write_keeps_the_lease(api: FakeApi) -> None:
    one = election(api, "one", Clock())
    one.step()
    api.fault("PUT", 409)
    assert one.step()


def test_renewal_takes_one_call(api: FakeApi) -> None:
    one = election(api, "one", Clock())
    one.step()
    for _ in range(3):
        assert one.step()
    assert api.count("PUT .*leases") == 3
    assert api.count("GET .*leases") == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_lease_that_others_changed_is_read_again(
    api: FakeApi, *, is_deleted: bool
) -> None:
    one = election(api, "one", Clock())
    one.step()
    if is_deleted:
        api.objects.clear()
    else:
        (raw,) = api.objects.values()
        raw["metadata"]["resourceVersion"] = "9999"
    assert one.step()
    assert one.holds()
    assert spec(api)["holderIdentity"] == "one"


def test_released_lease_is_free_immediately(api: FakeApi) -> None:
    one, two = election(api, "one", Clock()), election(api, "two", Clock())
    one.step()
    one.release()
    assert not one.holds()
    assert two.step()


def test_stolen_lease_is_detected(api: FakeApi) -> None:
    one = election(api, "one", Clock())
    one.step()
    api.put(PATH, spec={"holderIdentity": "thief", "leaseDurationSeconds": 12})
    assert not one.step()
    with pytest.raises(LeaseLost):
        one.guard()


class Watching:
    """Replicas whose watch has everything, on one clock that the test turns."""

    def __init__(self, api: FakeApi, *names: str) -> None:
        self.api, self.clock = api, Clock()
        self.elections: dict[str, Election] = {}
        self.watches: dict[str, Informer[bytes]] = {}
        for name in names:
            terms = Terms(namespace="kyverno", name="kyverno", identity=name)
            scope = named(LEASES, ("kyverno", "kyverno"))
            watch = self.watches[name] = Informer(api.client(), scope, whole)
            objects = Objects(api.client())
            self.elections[name] = Election(objects, terms, self.clock, watch=watch)
            watch.start()
            assert watch.wait_synced(HANG_S)

    def stop(self) -> None:
        for watch in self.watches.values():
            watch.stop()

    def heard(self) -> None:
        """Wait until the watches show the stored Lease."""
        key = ("/apis/coordination.k8s.io/v1", "kyverno", "leases", "kyverno")
        stored = self.api.objects.get(key)
        version = stored["metadata"]["resourceVersion"] if stored else ""

        def have_all() -> bool:
            watches = self.watches.values()
            return all(
                one.version_of(("kyverno", "kyverno")) == version for one in watches
            )

        wait_for(have_all)

    def look(self) -> None:
        """Let each replica do what ``run`` does at each look."""
        for election in self.elections.values():
            if election.is_due():
                election.step()
            self.heard()

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.clock.at_s += 0.25
            self.look()


@pytest.fixture
def watching(api: FakeApi) -> Iterator[Watching]:
    made = Watching(api, "one", "two", "three")
    yield made
    made.stop()


def test_watching_replicas_make_no_calls_and_the_holder_one_in_six_seconds(
    api: FakeApi, watching: Watching
) -> None:
    watching.look()
    watching.pass_s(6)
    before = len(api.requests)
    watching.pass_s(60)
    calls = [(method, path.split("?")[0]) for method, path, _ in api.requests[before:]]
    assert calls == [("PUT", PATH)] * 10
    assert watching.elections["one"].terms_held == 1


def test_watching_replica_takes_a_released_lease_at_once(watching: Watching) -> None:
    watching.look()
    watching.pass_s(1)
    watching.elections.pop("one").release()
    watching.heard()
    watching.look()
    assert watching.elections["two"].holds() != watching.elections["three"].holds()


def test_watching_replica_takes_a_deleted_lease_at_once(
    api: FakeApi, watching: Watching
) -> None:
    watching.look()
    watching.elections.pop("one")
    api.remove(PATH)
    watching.heard()
    watching.look()
    assert watching.elections["two"].holds() != watching.elections["three"].holds()


def test_watching_replica_takes_an_expired_lease_after_its_duration(
    watching: Watching,
) -> None:
    watching.look()
    watching.pass_s(1)
    watching.elections.pop("one")
    watching.pass_s(10)
    assert not watching.elections["two"].holds()
    watching.pass_s(3)
    assert watching.elections["two"].holds() != watching.elections["three"].holds()


def test_late_watch_causes_no_takeover(api: FakeApi, watching: Watching) -> None:
    """The watch of a replica stalls; the lease is renewed meanwhile."""
    watching.look()
    watching.pass_s(1)
    watching.watches.pop("two").stop()
    before = api.count("GET .*leases/kyverno")
    watching.pass_s(60)
    assert watching.elections["one"].terms_held == 1
    assert watching.elections["one"].holds()
    # It reads the lease before it takes it, once in each duration.
    assert 4 <= api.count("GET .*leases/kyverno") - before <= 5


def test_late_watch_of_a_released_lease_is_asked_for_once_in_a_retry_period(
    api: FakeApi, watching: Watching
) -> None:
    """Otherwise a replica whose watch is dead reads the lease at every look."""
    watching.look()
    watching.pass_s(1)
    watching.elections.pop("one").release()
    watching.heard()
    watching.watches.pop("two").stop()
    assert watching.elections["three"].step()
    before = api.count("GET .*leases/kyverno")
    watching.pass_s(60)
    assert watching.elections["three"].terms_held == 1
    assert api.count("GET .*leases/kyverno") - before <= 60 / 2 + 1


def test_holder_notices_at_once_that_another_has_taken_the_lease(
    api: FakeApi, watching: Watching
) -> None:
    watching.look()
    watching.pass_s(1)
    key = ("/apis/coordination.k8s.io/v1", "kyverno", "leases", "kyverno")
    stored = api.objects[key]
    api.store(key, {**stored, "spec": {**stored["spec"], "holderIdentity": "thief"}})
    watching.heard()
    watching.look()
    assert not watching.elections["one"].holds()


def test_replica_without_permission_to_watch_polls(api: FakeApi) -> None:
    api.fault("GET .*leases[?]", *([403] * 1000))
    scope = named(LEASES, ("kyverno", "kyverno"))
    watch = Informer(api.client(), scope, whole, pause_s_max=0.01)
    terms = Terms(namespace="kyverno", name="kyverno", identity="two")
    clock = Clock()
    election(api, "one", clock).step()
    two = Election(Objects(api.client()), terms, clock, watch=watch)
    watch.start()
    wait_for(lambda: watch.failures)
    assert two.is_due()
    two.step()
    assert not two.is_due()
    clock.at_s += 1.9
    assert not two.is_due()
    clock.at_s += 0.2
    assert two.is_due()
    watch.stop()


FOREIGN = "kyverno-background-controller-6f7b9c5d4-x2x9k"


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    ("annotations", "holder", "is_foreign"),
    [
        ({HOLDER: "three"}, FOREIGN, True),
        (None, FOREIGN, True),
        ({HOLDER: "two"}, "two", False),
        ({}, "one", False),
        ({HOLDER: "two"}, "", False),
    ],
    ids=["after-ours", "first", "our-replica", "ourselves", "nobody"],
)
def test_foreign_holder_is_known_by_what_it_does_not_write(
    api: FakeApi,
    annotations: dict[str, str] | None,
    holder: str,
    *,
    is_foreign: bool,
    is_watched: bool,
) -> None:
    """Another program keeps annotations, and its pods can have names like ours."""
    metadata = {} if annotations is None else {"annotations": annotations}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 12, "renewTime": "x"}
    api.put(PATH, spec=spec, metadata=metadata)
    if is_watched:
        made = Watching(api, "one")
        one = made.elections["one"]
        made.look()
        one.pause_s()
        made.stop()
    else:
        one = election(api, "one", Clock())
        one.step()
    assert one.foreign_holder == (holder if is_foreign else "")


def test_our_replicas_are_not_foreign_to_one_another(
    api: FakeApi, watching: Watching
) -> None:
    """Whoever holds the lease, also after another program; renewals keep the sign."""
    watching.look()
    watching.pass_s(20)
    assert [one.foreign_holder for one in watching.elections.values()] == [""] * 3
    key = ("/apis/coordination.k8s.io/v1", "kyverno", "leases", "kyverno")
    stored = api.objects[key]
    api.store(key, {**stored, "spec": {**stored["spec"], "holderIdentity": FOREIGN}})
    watching.heard()
    watching.pass_s(1)
    found = [one.foreign_holder for one in watching.elections.values()]
    assert found == [FOREIGN] * 3
    watching.pass_s(30)
    assert any(one.holds() for one in watching.elections.values())
    assert [one.foreign_holder for one in watching.elections.values()] == [""] * 3
    watching.clock.at_s += 60
    assert not any(one.holds() for one in watching.elections.values())
    assert [one.foreign_holder for one in watching.elections.values()] == [""] * 3


def test_failed_renewal_is_repeated_before_the_lease_ends(api: FakeApi) -> None:
    clock = Clock()
    one = election(api, "one", clock)
    one.step()
    clock.at_s += 5.9
    assert not one.is_due()
    clock.at_s += 0.2
    assert one.is_due()
    api.fault("PUT", 403)
    assert one.step()
    assert not one.is_due()
    clock.at_s += 0.5
    assert one.is_due()
    assert one.step()
    assert not one.last_error


LOOKS_A_MINUTE_MAX = 31
"""As many as retry periods, in which upstream's replicas call the API server."""


def test_replicas_look_seldom(watching: Watching) -> None:
    """PERF: four looks a second at each of four leases took 0.35 % of a core."""
    watching.look()
    looks = dict.fromkeys(watching.elections, 0)
    ends_s = watching.clock.at_s + 60
    while watching.clock.at_s < ends_s:
        pauses = {one: found.pause_s() for one, found in watching.elections.items()}
        watching.clock.at_s += min(pauses.values())
        for name, election in watching.elections.items():
            looks[name] += pauses[name] <= min(pauses.values())
            if election.is_due():
                election.step()
                watching.heard()
    assert max(looks.values()) <= LOOKS_A_MINUTE_MAX


@contextmanager
def campaigning(api: FakeApi, clock: Clock) -> Iterator[Election]:
    """Run an election whose pauses only a wake-up can end."""
    terms = Terms(
        namespace="kyverno", name="kyverno", identity="two", retry_s=10 * HANG_S
    )
    scope = named(LEASES, ("kyverno", "kyverno"))
    watch = Informer(api.client(), scope, whole, pause_s_max=0.01)
    found = Election(Objects(api.client()), terms, clock, watch=watch)
    thread = Thread(target=found.run)
    thread.start()
    yield found
    found.stop()
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_a_release_ends_the_pause_of_a_waiting_replica(api: FakeApi) -> None:
    one = election(api, "one", Clock())
    assert one.step()
    terms: list[bool] = []
    with campaigning(api, Clock()) as two:
        two.on_term(lambda: terms.append(two.holds()))
        wait_for(lambda: api.count("GET .*watch"))
        one.release()
        wait_for(two.holds)
    assert terms[:1] == [True]
    assert spec(api)["holderIdentity"] == "", "a stop ends the pause and releases"


def test_a_failing_watch_ends_the_pause_of_a_waiting_replica(api: FakeApi) -> None:
    """It reads the Lease instead, in each retry period."""
    assert election(api, "one", Clock()).step()
    clock = Clock()
    with campaigning(api, clock):
        wait_for(lambda: api.count("GET .*watch"))
        reads = api.count("GET .*/kyverno$")
        clock.at_s += 10 * HANG_S
        api.fault("GET .*leases[?]", *([403] * 1000))
        api.drop_watches()
        wait_for(lambda: api.count("GET .*/kyverno$") > reads)


def test_the_fence_is_a_time_to_wait_for(api: FakeApi) -> None:
    clock = Clock()
    one = election(api, "one", clock)
    assert one.fence_s == 0
    assert one.step()
    assert one.fence_s == 10
    clock.at_s += 9.75
    assert one.fence_s == 0.25
    clock.at_s += 1
    assert one.fence_s == 0
