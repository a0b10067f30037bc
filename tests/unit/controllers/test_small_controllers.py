"""The delays between runs of the small controllers, and their effects."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import msgspec
import pytest

from kyverno_mp.controllers import discovery_controller
from kyverno_mp.controllers.discovery_controller import DiscoveryController
from kyverno_mp.controllers.global_context_controller import GlobalContextController
from kyverno_mp.controllers.global_context_events import GlobalContextEvents
from kyverno_mp.controllers.global_context_status import GlobalContextStatuses, State
from kyverno_mp.controllers.policy_status import InForce, PolicyStatuses, Served
from kyverno_mp.controllers.policy_status_controller import PolicyStatusController
from kyverno_mp.controllers.replicas import NAME, Replicas, ReplicasController
from kyverno_mp.controllers.webhook_config.controller import (
    Registered,
    WebhookController,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.events import EventInfo
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.queues.reconcile import Result
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.queues.turned_clock import TurnedClock

POLICY = "/apis/kyverno.io/v1/clusterpolicies/p"
ENTRY = "/apis/kyverno.io/v2beta1/globalcontextentries/e"
ENDED = Result()


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


def held(api: FakeApi) -> Election:
    terms = Terms(namespace="kyverno", name="kyverno", identity="one")
    election = Election(Objects(api.client()), terms, clock_ns=lambda: 1)
    assert election.step()
    return election


@dataclass
class Webhooks:
    """The state that the webhook controller reports."""

    registered: Registered | None = None
    reached: bool = True

    def answers(self) -> bool:
        return self.reached


@dataclass
class Statuses:
    """A status controller of one policy, and its inputs."""

    api: FakeApi
    webhooks: Webhooks = field(default_factory=Webhooks)
    served: Served = field(default_factory=dict)
    lagging: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.election = held(self.api)
        self.controller = PolicyStatusController(
            PolicyStatuses(Objects(self.api.client()).guarded(self.election.guard)),
            self.election,
            TurnedClock().clock,
            webhooks=cast("WebhookController", self.webhooks),
            served=lambda: self.served,
            lagging=lambda _policy: self.lagging,
        )

    def register(self, term: int = 1) -> None:
        raw = {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "spec": {
                "rules": [
                    {
                        "name": "r",
                        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                        "validate": {"message": "m", "pattern": {"kind": "?*"}},
                    }
                ]
            },
        }
        self.api.put(POLICY, **raw)
        policy = decode({**raw, "metadata": {"name": "p"}})
        assert isinstance(policy, ClusterPolicy)
        self.webhooks.registered = Registered((policy,), term)

    def serve(self) -> None:
        self.served = {("ClusterPolicy", "", "p"): InForce(ready=True)}

    def ready(self) -> str | None:
        found = self.api.client().get(POLICY)
        conditions = (found.get("status") or {}).get("conditions") or [{}]
        status = conditions[0].get("status")
        return str(status) if status else None


def test_status_follows_webhooks_and_workers(
    api: FakeApi,
) -> None:
    statuses = Statuses(api)
    assert statuses.controller.reconcile("") == ENDED
    statuses.register()
    assert statuses.controller.reconcile("") == Result(retry=True)
    statuses.serve()
    statuses.lagging = ("two",)
    assert statuses.controller.reconcile("") == Result(retry=True)
    assert statuses.ready() is None
    statuses.lagging = ()
    assert statuses.controller.reconcile("") == ENDED
    assert statuses.ready() == "True"
    before = len(api.requests)
    assert statuses.controller.reconcile("") == ENDED
    assert len(api.requests) == before


def test_policy_is_not_ready_while_the_webhook_is_unreachable(
    api: FakeApi,
) -> None:
    statuses = Statuses(api)
    statuses.register()
    statuses.serve()
    statuses.controller.reconcile("")
    statuses.webhooks.reached = False
    statuses.controller.reconcile("")
    assert statuses.ready() == "False"
    statuses.webhooks.reached = True
    statuses.controller.reconcile("")
    assert statuses.ready() == "True"


def test_policies_registered_in_another_term_get_no_status(api: FakeApi) -> None:
    """Another replica may have registered other webhooks in the meantime."""
    statuses = Statuses(api)
    statuses.register()
    statuses.serve()
    statuses.election.release()
    assert statuses.controller.reconcile("") == ENDED
    assert statuses.election.step()
    assert statuses.controller.reconcile("") == ENDED
    assert statuses.ready() is None
    statuses.register(term=2)
    assert statuses.controller.reconcile("") == ENDED
    assert statuses.ready() == "True"


def test_new_term_checks_every_status_again(api: FakeApi) -> None:
    statuses = Statuses(api)
    statuses.register()
    statuses.serve()
    statuses.controller.reconcile("")
    statuses.election.release()
    assert statuses.election.step()
    # Another holder left this status.
    statuses.register(term=2)
    assert statuses.ready() is None
    statuses.controller.reconcile("")
    assert statuses.ready() == "True"


class Refreshes:
    """A fake Discovery with prepared results of its refreshes."""

    def __init__(self, *changes: bool) -> None:
        self.changes = list(changes)
        self.stale: tuple[str, ...] = ()

    def refresh(self) -> bool:
        return self.changes.pop(0) if self.changes else False


class Directory:
    """A discovery controller, and the callbacks that it called."""

    def __init__(self, *changes: bool) -> None:
        self.refreshes = Refreshes(*changes)
        self.noted: list[str] = []
        self.controller = DiscoveryController(
            cast("Discovery", self.refreshes),
            refresh_now=lambda: self.noted.append("look"),
            on_change=lambda: self.noted.append("changed"),
        )

    def pauses(self, count: int) -> list[float | None]:
        return [
            self.controller.reconcile(discovery_controller.ALL).after_s
            for _ in range(count)
        ]


def test_discovery_is_repeated_once_after_a_change() -> None:
    directory = Directory(True, False, False, True)
    assert directory.pauses(6) == [1, 60, 60, 1, 60, 60]
    assert directory.noted == ["changed", "changed"]


def test_discovery_retries_five_times_for_new_kinds() -> None:
    directory = Directory()
    assert directory.pauses(1) == [60]
    assert directory.controller.reconcile(discovery_controller.CRDS) == ENDED
    assert directory.noted == ["look"]
    assert directory.pauses(6) == [1, 1, 1, 1, 60, 60]
    directory.controller.reconcile(discovery_controller.CRDS)
    directory.pauses(2)
    directory.controller.reconcile(discovery_controller.CRDS)
    assert directory.pauses(5) == [1, 1, 1, 1, 60], "counted from the last one"


def test_silent_server_is_checked_sooner() -> None:
    directory = Directory()
    directory.refreshes.stale = ("metrics.k8s.io/v1beta1",)
    assert directory.pauses(2) == [10, 10]


def test_frequently_changing_states_are_written_once_a_second(
    api: FakeApi,
) -> None:
    api.put(ENTRY, spec={})
    turned, submitted = TurnedClock(), list[EventInfo]()
    states: dict[str, State] = {"e": (False, "no answer", None)}
    objects, election = Objects(api.client()), held(api)

    def submit(info: EventInfo) -> bool:
        submitted.append(info)
        return True

    controller = GlobalContextController(
        GlobalContextStatuses(objects.guarded(election.guard)),
        GlobalContextEvents(objects, submit),
        election,
        lambda: states,
        turned.clock,
    )
    assert controller.reconcile("") == Result(after_s=10)
    assert len(submitted) == 1
    refreshed = datetime(2026, 1, 1, tzinfo=UTC)
    states["e"] = (True, "", refreshed)
    turned.turn(0.25)
    assert controller.reconcile("") == Result(after_s=0.75)
    assert api.count("PUT .*globalcontextentries") == 1
    turned.turn(0.75)
    assert controller.reconcile("") == Result(after_s=10)
    status = api.client().get(ENTRY)["status"]
    assert status["lastRefreshTime"] == "2026-01-01T00:00:00Z"
    # Another holder writes now; its status is checked when the lease returns.
    election.release()
    turned.turn(1)
    assert controller.reconcile("") == Result(after_s=1)
    api.put(ENTRY, spec={})
    assert election.step()
    turned.turn(1)
    controller.reconcile("")
    found = api.client().get(ENTRY)["status"]
    assert found["lastRefreshTime"] == status["lastRefreshTime"]


def test_replica_reports_before_it_counts_as_silent(
    api: FakeApi,
) -> None:
    turned = TurnedClock()
    replicas = Replicas(
        Objects(api.client()), "kyverno", "one", turned.clock.monotonic_ns
    )
    versions: list[dict[str, int] | None] = [{}, None, {"policies": 1}]
    controller = ReplicasController(replicas, lambda: versions.pop(0))
    assert controller.reconcile("") == Result(after_s=12)
    assert controller.reconcile("") == Result(retry=True), "workers attach something"
    assert api.count("(POST|PATCH) .*configmaps") == 0
    assert controller.reconcile("") == Result(after_s=12)
    versions += [{"policies": 2}, {"policies": 2}, {"policies": 2}]
    assert controller.reconcile("") == Result(after_s=0.1), "writes keep a distance"
    turned.turn(0.25)
    assert controller.reconcile("") == Result(after_s=12)
    turned.turn(12)
    controller.reconcile("")
    data = api.client().get(f"/api/v1/namespaces/kyverno/configmaps/{NAME}")["data"]
    assert msgspec.json.decode(data["one"]) == {"versions": {"policies": 2}, "beat": 3}


def test_only_versions_enforced_by_others_are_reported(api: FakeApi) -> None:
    moved = list[int]()
    replicas = Replicas(
        Objects(api.client()),
        "kyverno",
        "one",
        TurnedClock().clock.monotonic_ns,
        lambda: moved.append(1),
    )

    def hear(**claims: dict[str, object]) -> int:
        data = {name: msgspec.json.encode(one).decode() for name, one in claims.items()}
        replicas.read_reports(msgspec.Raw(msgspec.json.encode({"data": data})))
        found, moved[:] = len(moved), []
        return found

    assert hear(one={"versions": {"policies": 1}, "beat": 1}) == 0
    assert hear(two={"versions": {"policies": 1}, "beat": 1}) == 1
    assert hear(two={"versions": {"policies": 1}, "beat": 2}) == 0
    assert hear(two={"versions": {"policies": 2}, "beat": 3}) == 1
    assert hear() == 1, "nobody waits for it any more"
