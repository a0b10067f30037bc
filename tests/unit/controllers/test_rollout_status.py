"""The status and an Event of a policy say that its enforcement fell back.

A failure means: a policy is out of force, and nobody hears of it, or its status says so
for ever.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.controllers.rollout_status import RolloutStatuses
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventInfo
from kyverno_mp.snapshot.rollouts import RolloutState
from tests.unit.kube.fake_api import FakeApi, running

READY = {"type": "Ready", "status": "True"}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


def statuses_of(api: FakeApi, events: list[EventInfo]) -> RolloutStatuses:
    def submit(info: EventInfo) -> bool:
        events.append(info)
        return True

    return RolloutStatuses(Objects(api.client()), submit)


@pytest.mark.parametrize(
    ("name", "path", "in_cel"),
    [
        ("ClusterPolicy_p", "/apis/kyverno.io/v1/clusterpolicies/p", False),
        ("Policy_a_p", "/apis/kyverno.io/v1/namespaces/a/policies/p", False),
        (
            "ValidatingPolicy_p",
            "/apis/policies.kyverno.io/v1beta1/validatingpolicies/p",
            True,
        ),
        (
            "NamespacedValidatingPolicy_a_p",
            "/apis/policies.kyverno.io/v1beta1/namespaces/a/namespacedvalidatingpolicies/p",
            True,
        ),
    ],
)
def test_condition_comes_and_goes(
    api: FakeApi, name: str, path: str, *, in_cel: bool
) -> None:
    parent = {"conditions": [READY]}
    status = {"conditionStatus": parent} if in_cel else parent
    group = path.split("/")[2]
    api.put(path, apiVersion=f"{group}/v1", status=status)
    events: list[EventInfo] = []
    statuses = statuses_of(api, events)

    def conditions() -> list[dict[str, Any]]:
        raw = api.client().get(path)["status"]
        listed: list[dict[str, Any]] = (raw["conditionStatus"] if in_cel else raw)[
            "conditions"
        ]
        return listed

    state = RolloutState("plan", "FellBack", 1, 1_700_000_000, "too many")
    statuses.tell(name, state)
    ready, fell_back = conditions()
    assert ready == READY
    assert (fell_back["type"], fell_back["status"], fell_back["reason"]) == (
        *("EnforcementProgressing", "False"),
        "FellBack",
    )
    assert fell_back["message"].startswith("too many: ")
    writes = api.count("(PUT|PATCH) ")
    statuses.tell(name, state)
    assert api.count("(PUT|PATCH) ") == writes
    assert events[0] == events[1], "the same Event after a restart"
    assert events[0].regarding.kind == name.split("_", maxsplit=1)[0]
    statuses.tell(name, RolloutState("plan", "Progressing", 1, 1_700_000_000))
    assert conditions() == [READY]
    assert len(events) == 2


def test_policy_that_is_gone_has_no_event(api: FakeApi) -> None:
    events: list[EventInfo] = []
    statuses = statuses_of(api, events)
    statuses.tell("ClusterPolicy_gone", RolloutState("plan", "FellBack", 1, 1, "many"))
    statuses.tell("Unknown_p", RolloutState("plan", "FellBack", 1, 1, "many"))
    assert events == []
