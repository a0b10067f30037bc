"""Ready waits for every replica that says something, and for none that is gone."""

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


def hear(api: FakeApi, *replicas: Replicas) -> dict[str, str]:
    """Let replicas see the ConfigMap as it is; gives its data."""
    found = Objects(api.client()).find(CONFIG_MAPS, ("kyverno", NAME)) or {}
    for one in replicas:
        one.hear(msgspec.Raw(msgspec.json.encode(found)))
    return dict(found.get("data") or {})


def test_a_version_is_waited_for_until_the_other_has_it(api: FakeApi) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    assert one.tell({"clusterpolicies": 12, "policies": 5})
    assert two.tell({"clusterpolicies": 10, "policies": 5})
    hear(api, one, two)
    assert one.behind("clusterpolicies", 12) == ("two",)
    assert one.behind("clusterpolicies", 10) == ()
    assert one.behind("policies", 5) == ()
    # Nobody waits for himself.
    assert two.behind("clusterpolicies", 12) == ()
    # Writes keep a distance; what waits for it says so.
    assert not two.tell({"clusterpolicies": 12, "policies": 5})
    clock.now_ns += S
    assert two.tell({"clusterpolicies": 12, "policies": 5})
    hear(api, one)
    assert one.behind("clusterpolicies", 12) == ()


def test_who_is_silent_is_not_waited_for_and_then_forgotten(api: FakeApi) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    one.tell({"policies": 9})
    two.tell({"policies": 7})
    hear(api, one)
    for _ in range(2):
        clock.now_ns += 10 * S
        assert one.tell({"policies": 9})
        assert two.tell({"policies": 7})
        hear(api, one)
        assert one.behind("policies", 9) == ("two",), "it beats, so it lives"
    clock.now_ns += 26 * S
    hear(api, one)
    assert one.behind("policies", 9) == ()
    clock.now_ns += 600 * S
    one.tell({"policies": 9})
    assert set(hear(api)) == {"one"}


def test_who_leaves_is_not_waited_for(api: FakeApi) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    one.tell({"policies": 9})
    two.tell({"policies": 7})
    two.leave()
    assert set(hear(api, one)) == {"one"}
    assert one.behind("policies", 9) == ()


def test_what_somebody_wrote_by_hand_holds_up_nothing(api: FakeApi) -> None:
    api.put(PATH, data={"x": "no JSON", "y": '{"versions": 3}', "z": "{}"})
    clock = Clock()
    one = replica(api, "one", clock)
    hear(api, one)
    assert one.behind("policies", 9) == ()


def test_a_refusal_is_no_loop(api: FakeApi) -> None:
    """Without the permission nobody is told, and nobody waits."""
    clock = Clock()
    one = replica(api, "one", clock)
    api.fault("PATCH", *([403] * 100))
    for _ in range(50):
        assert one.tell({"policies": 9})
        clock.now_ns += S // 10
    assert api.count("PATCH") == 1


def test_who_keeps_policies_from_ready_is_named(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    one, two = replica(api, "one", clock), replica(api, "two", clock)
    two.tell({"policies": 7})
    for _ in range(5):
        hear(api, one)
        assert one.behind("policies", 9) == ("two",)
        clock.now_ns += 9 * S
        two.tell({"policies": 7})
    assert caplog.text.count("only after replica two has loaded") == 1
    two.tell({"policies": 8})
    hear(api, one)
    assert one.behind("policies", 9) == ("two",)
    assert caplog.text.count("only after replica two has loaded") == 1
