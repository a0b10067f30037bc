"""The status and an Event of a policy say that its enforcement fell back.

A failure means: a policy is out of force, and nobody hears of it, or its status says so
for ever.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.rollout_states import CONFIG_MAPS, NAME, Stored, stored_in
from kyverno_mp.controllers.rollout_status import RolloutStatuses
from kyverno_mp.controllers.rollouts import (
    ALL,
    Inputs,
    RolloutsController,
    initial,
    rollouts_in,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventInfo
from kyverno_mp.queues.clock import Clock
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


class Holder:
    """A lease holder with one policy, whose stored state the test sets."""

    def __init__(self, api: FakeApi) -> None:
        annotations = {"kyverno-mp.io/enforce-schedule": "10 -> 100 every 24h"}
        metadata = {"name": "p", "annotations": annotations}
        policy = json.dumps({"kind": "ClusterPolicy", "metadata": metadata}).encode()
        api.put(PATH, apiVersion="kyverno.io/v1", metadata=metadata, status={})
        self.events: list[EventInfo] = []
        self._api, self._objects = api, Objects(api.client())
        self._policy, self._clock = policy, Clock()
        ((self._name, rollout),) = rollouts_in([policy]).items()
        self._state = initial(rollout, int(self._clock.now().timestamp()))
        self.restart()

    def restart(self) -> None:
        """Let another leader hold the lease."""
        election: Any = self
        self._controller = RolloutsController(
            self._objects,
            election,
            KEY,
            Inputs(
                self._stored,
                lambda: [self._policy],
                lambda _: None,
                tell=statuses_of(self._api, self.events).tell,
            ),
            self._clock,
        )

    def holds(self) -> bool:
        return True

    def store(self, phase: str, reason: str = "") -> None:
        state = msgspec.structs.replace(self._state, phase=phase, reason=reason)
        data = {self._name: msgspec.json.encode(state).decode()}
        self._api.put(STATES, data=data)

    def _stored(self) -> Stored:
        return stored_in(
            msgspec.Raw(msgspec.json.encode(self._objects.find(CONFIG_MAPS, KEY)))
        )

    def reconcile(self) -> None:
        self._controller.reconcile(ALL)


PATH = "/apis/kyverno.io/v1/clusterpolicies/p"
KEY = ("kyverno", NAME)
STATES = f"/api/v1/namespaces/kyverno/configmaps/{NAME}"
WRITES = "(PUT|PATCH) .*/clusterpolicies/p"


@pytest.mark.parametrize("code", [409, 422])
@pytest.mark.parametrize("failures", range(1, 12))
def test_what_the_api_server_rejects_is_told_again(
    api: FakeApi, code: int, failures: int
) -> None:
    """Although nothing changes after the rejection."""
    holder = Holder(api)

    def conditions() -> list[Any]:
        listed: list[Any] = api.client().get(PATH)["status"].get("conditions", [])
        return listed

    def settle() -> None:
        for _ in range(failures + 1):
            holder.reconcile()

    rejection = {"code": code, "reason": "Conflict" if code == 409 else "Invalid"}
    holder.store("FellBack", "too many")
    api.fault(WRITES, *[rejection] * failures)
    settle()
    assert [one["reason"] for one in conditions()] == ["FellBack"]
    assert len(holder.events) == 1
    # Somebody resumed it. The next state has no reason, whatever the status says.
    holder.store("Progressing", "too many")
    api.fault(WRITES, *[rejection] * failures)
    settle()
    assert conditions() == []
    assert len(holder.events) == 1


def test_another_leader_tells_what_the_last_one_could_not(api: FakeApi) -> None:
    """A kill between a rejection and its repeat leaves no stale condition."""
    holder = Holder(api)
    holder.store("FellBack", "too many")
    holder.reconcile()
    holder.store("Progressing", "too many")
    rejection = {"code": 422, "reason": "Invalid"}
    for _ in range(3):
        api.fault(WRITES, rejection)
        holder.reconcile()
        holder.restart()
    assert api.client().get(PATH)["status"]["conditions"]
    holder.reconcile()
    assert not api.client().get(PATH)["status"].get("conditions")
