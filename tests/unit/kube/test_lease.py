"""Two replicas never assume at one time that they hold a lease."""

from datetime import UTC, datetime

import pytest

from kyverno_mp.errors import LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import Election, Terms
from tests.unit.kube.fake_api import FakeApi

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
