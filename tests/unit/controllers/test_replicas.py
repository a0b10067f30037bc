"""Ready waits for every reporting replica, and for no removed replica."""

from collections.abc import Iterator

import msgspec
import pytest

from kyverno_mp.controllers.replicas import CONFIG_MAPS, NAME, Replicas
from kyverno_mp.kube.apply import Objects
from tests.unit.kube.fake_api import FakeApi, running

S = 10**9
PATH = f"/api/v1/namespaces/kyverno/configmaps/{NAME}"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * S

    def __call__(self) -> int:
        return self.now_ns


def replica(api: FakeApi, name: str, clock: Clock) -> Replicas:
    return Replicas(Objects(api.client()), "kyverno", name, clock)


def read_reports(api: FakeApi, *replicas: Replicas) -> dict[str, str]:
    """Let replicas read the current ConfigMap; return its data."""
    found = Objects(api.client()).find(CONFIG_MAPS, ("kyverno", NAME)) or {}
    for one in replicas:
        one.read_reports(msgspec.Raw(msgspec.json.encode(found)))
    return dict(found.get("data") or {})


def test_readiness_waits_for_the_other_replica(api: FakeApi) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    assert one.report({"clusterpolicies": 12, "policies": 5})
    assert two.report({"clusterpolicies": 10, "policies": 5})
    read_reports(api, one, two)
    assert one.lagging("clusterpolicies", 12) == ("two",)
    assert one.lagging("clusterpolicies", 10) == ()
    assert one.lagging("policies", 5) == ()
    # A replica does not wait for itself.
    assert two.lagging("clusterpolicies", 12) == ()
    # Writes are rate-limited; a write that must wait returns False.
    assert not two.report({"clusterpolicies": 12, "policies": 5})
    clock.now_ns += S
    assert two.report({"clusterpolicies": 12, "policies": 5})
    read_reports(api, one)
    assert one.lagging("clusterpolicies", 12) == ()


def test_silent_replica_is_not_waited_for_and_later_removed(api: FakeApi) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    one.report({"policies": 9})
    two.report({"policies": 7})
    read_reports(api, one)
    for _ in range(2):
        clock.now_ns += 10 * S
        assert one.report({"policies": 9})
        assert two.report({"policies": 7})
        read_reports(api, one)
        assert one.lagging("policies", 9) == ("two",), "it beats, so it lives"
    clock.now_ns += 26 * S
    read_reports(api, one)
    assert one.lagging("policies", 9) == ()
    clock.now_ns += 600 * S
    one.report({"policies": 9})
    assert set(read_reports(api)) == {"one"}


def test_departing_replica_is_not_waited_for(api: FakeApi) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    one.report({"policies": 9})
    two.report({"policies": 7})
    two.leave()
    assert set(read_reports(api, one)) == {"one"}
    assert one.lagging("policies", 9) == ()


def test_manual_edits_block_nothing(api: FakeApi) -> None:
    api.put(PATH, data={"x": "no JSON", "y": '{"versions": 3}', "z": "{}"})
    clock = Clock()
    one = replica(api, "one", clock)
    read_reports(api, one)
    assert one.lagging("policies", 9) == ()


def test_rejected_report_is_not_retried_in_a_loop(api: FakeApi) -> None:
    """Without the permission, nothing is reported, and no replica waits."""
    clock = Clock()
    one = replica(api, "one", clock)
    api.fault("PATCH", *([403] * 100))
    for _ in range(50):
        assert one.report({"policies": 9})
        clock.now_ns += S // 10
    assert api.count("PATCH") == 1


def test_replicas_that_delay_readiness_are_named(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    two.report({"policies": 7})
    for _ in range(5):
        read_reports(api, one)
        assert one.lagging("policies", 9) == ("two",)
        clock.now_ns += 9 * S
        two.report({"policies": 7})
    assert caplog.text.count("only after replica two has loaded") == 1
    two.report({"policies": 8})
    read_reports(api, one)
    assert one.lagging("policies", 9) == ("two",)
    assert caplog.text.count("only after replica two has loaded") == 1
