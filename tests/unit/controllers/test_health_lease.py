"""Webhooks stay while the API server stamps the lease; otherwise they are removed."""

from datetime import UTC, datetime
from typing import Any

from kyverno_mp.controllers.health_lease import LAST_REQUEST, HealthLease
from kyverno_mp.kube.apply import Objects
from tests.unit.kube.fake_api import FakeApi, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATH = "/apis/coordination.k8s.io/v1/namespaces/kyverno/leases/kyverno-health"
KEY = ("/apis/coordination.k8s.io/v1", "kyverno", "leases", "kyverno-health")


class Clock:
    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


def stamp(api: FakeApi, text: str) -> None:
    """Stamp the lease as the webhook does when the lease is written."""
    raw = api.objects[KEY]
    raw["metadata"]["annotations"] = {LAST_REQUEST: text}
    api.store(KEY, raw)


def writes(api: FakeApi) -> list[str]:
    return [method for method, _, _ in api.requests if method != "GET"]


def test_lease_is_created_like_upstreams() -> None:
    with running() as api:
        lease = HealthLease(Objects(api.client()), "kyverno", Clock())
        assert lease.answers()
        lease.tick(NOW)
        metadata: Any = api.objects[KEY]["metadata"]
        assert metadata["labels"] == {"app.kubernetes.io/name": "kyverno"}
        assert metadata["annotations"] == {LAST_REQUEST: "2026-01-01T00:00:00Z"}


def test_lease_is_written_every_ten_seconds() -> None:
    clock = Clock()
    with running() as api:
        lease = HealthLease(Objects(api.client()), "kyverno", clock)
        for _ in range(21):
            lease.tick(NOW)
            clock.now_s += 1
        assert writes(api) == ["POST", "PUT", "PUT"]


def test_missing_stamp_for_100_seconds_means_unreachable() -> None:
    clock = Clock()
    with running() as api:
        lease = HealthLease(Objects(api.client()), "kyverno", clock)
        for second in range(0, 100, 10):
            stamp(api, str(second)) if second else None
            lease.tick(NOW)
            clock.now_s += 10
        assert lease.answers()
        for _ in range(9):
            lease.tick(NOW)
            clock.now_s += 10
        assert not lease.answers()
        stamp(api, "again")
        lease.tick(NOW)
        assert lease.answers()


def test_new_holder_ignores_an_old_stamp() -> None:
    """After an outage of all replicas, an old stamp must not remove the webhooks."""
    clock = Clock()
    with running() as api:
        api.put(PATH, metadata={"annotations": {LAST_REQUEST: "2025-01-01T00:00:00Z"}})
        lease = HealthLease(Objects(api.client()), "kyverno", clock)
        lease.tick(NOW)
        clock.now_s += 95
        assert lease.answers()
        lease.forget()
        lease.tick(NOW)
        clock.now_s += 95
        assert lease.answers()


def test_rejected_write_is_no_outage_for_100_seconds() -> None:
    clock = Clock()
    with running() as api:
        lease = HealthLease(Objects(api.client()), "kyverno", clock)
        api.faults.append(("POST .*leases", 403))
        lease.tick(NOW)
        assert lease.answers()
        clock.now_s += 101
        assert not lease.answers()
