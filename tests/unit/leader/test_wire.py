"""Events that make the leader's controllers act, without help of the clock.

The queue's clock stands still unless a test sets it: an effect during this time was
caused by an event instead of the next periodic check.
"""

import base64
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from kyverno_mp.controllers.replicas import NAME as REPLICAS
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.leader.cluster import LivePolicies
from kyverno_mp.leader.configuration import ClusterConfiguration
from kyverno_mp.leader.context.cluster import ClusterGlobalContext
from kyverno_mp.leader.control import keys
from kyverno_mp.leader.control.dependencies import Followed, ReplicaContext
from kyverno_mp.leader.control.event_recorder import EventRecorder
from kyverno_mp.leader.control.health import (
    LeaderHealth,
    read_leader_health,
    write_leader_health,
)
from kyverno_mp.leader.control.metrics import LeaderMetrics
from kyverno_mp.leader.control.wire import Wired
from kyverno_mp.leader.status import PolicyStatus, Status, StatusReader, write_status
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.queues.journal import EVENTS
from kyverno_mp.settings.machine import start_ticks
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import DENIALS, ring
from kyverno_mp.snapshot.callers import CALLERS, Callers, is_segment
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.kube.test_discovery import group, resource
from tests.unit.queues.turned_clock import TurnedClock
from tests.waiting import wait_for

Json = Any
KYVERNO = "/api/v1/namespaces/kyverno"
POLICY = "/apis/kyverno.io/v1/clusterpolicies/p"
ENTRY = "/apis/kyverno.io/v2beta1/globalcontextentries/e"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.example.com"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"
    "kyverno-resource-validating-webhook-cfg"
)


def policy(kind: str = "Pod") -> Json:
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": [kind]}}]},
        "validate": {"message": "m", "pattern": {"metadata": {"name": "?*"}}},
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "spec": {"rules": [rule]},
    }


def serve_kinds(api: FakeApi, *kinds: tuple[str, str]) -> None:
    served = [resource(plural, kind) for plural, kind in kinds]
    answer = {"kind": "APIGroupDiscoveryList", "items": [group("", "v1", *served)]}
    api.answers["/api"] = answer
    api.answers["/apis"] = {**answer, "items": []}


def refuse(_request: ApiRequest, _deadline_ns: int) -> bytes:
    raise AssertionError("no entry of these tests makes calls")


_TICKS: Final = 10
"""Of 10 ms. After them, nothing that was put off for longer happens."""


class Leader:
    """The controllers of a leader with their real dependencies, and one worker."""

    def __init__(
        self, api: FakeApi, folder: Path, settings: Settings | None = None
    ) -> None:
        self.api = api
        self.turned = TurnedClock()
        self.folder = folder
        for made in (folder / "snapshot", EVENTS.folder(folder)):
            made.mkdir(mode=0o700, parents=True)
        self.page = ControlPage.create(folder / "snapshot")
        self.worker = self.page.claim(os.getpid(), start_ticks(os.getpid()))
        client, settings = api.client(), settings or Settings()
        self.objects = Objects(client)
        self.policies = LivePolicies(client)
        self.configuration = ClusterConfiguration(client, settings)
        self.context = ClusterGlobalContext(client, refuse, 256)
        terms = Terms(namespace="kyverno", name="kyverno", identity="one")
        # The lease is held until it is released, however slow this machine is.
        self.election = Election(self.objects, terms, clock_ns=lambda: 1)
        self.status = StatusReader(folder)
        self.wired = Wired(
            ReplicaContext(
                settings=settings,
                runtime_dir=folder,
                status=self.status,
                page=self.page,
                serve_with=lambda _kept: None,
                clock=self.turned.clock,
            ),
            Followed(
                client,
                self.policies,
                self.configuration,
                self.context,
                LeaderMetrics(client),
            ),
            self.election,
            EventRecorder(
                settings,
                folder,
                self.objects,
                lambda: self.configuration.current.configuration,
                lambda _key: None,
            ),
            "one",
        )
        self.informers: list[Informer[Any]] = [
            *self.policies.informers,
            *self.policies.cel_informers,
            *self.configuration.informers,
            self.context.informer,
            *self.wired.informers,
        ]

    def start(self) -> None:
        """Lead with workers that have all data, and register."""
        assert self.election.step()
        for informer in self.informers:
            informer.start()
        wait_for(lambda: all(one.synced for one in self.informers))
        self.publish(1)
        self.attach(1)
        # Workers check for their first certificate for three seconds.
        self.pass_s(4)
        self.until(lambda: CONFIGURATION in self.configured())
        self.work()

    def stop(self) -> None:
        self.context.stop()
        for informer in self.informers:
            informer.stop()

    def work(self) -> None:
        self.wired.controllers.work_due()

    def pass_s(self, seconds: float) -> None:
        """Let the time pass for a queue whose worker never sleeps."""
        for _ in range(round(seconds * 10)):
            self.turned.turn(0.1)
            self.work()

    def until(self, condition: Callable[[], object]) -> None:
        """Let events take effect while the clock almost stands still.

        Writes of webhook configurations keep a distance (queues/pace.py), so one may be
        due only 10 ms later: after each work, whenever its event arrives.
        """
        ticks = _TICKS

        def holds() -> object:
            nonlocal ticks
            if self.wired.controllers.work_due():
                ticks = _TICKS
            value = condition()
            if not value and ticks:
                ticks -= 1
                self.turned.turn(0.01)
            return value

        wait_for(holds)

    def heard(self) -> None:
        """Wait until the policy informers have the API server's current state."""
        version = str(self.api.version)
        wait_for(lambda: self.policies.informers[0].notified_version == version)

    def publish(self, generation: int, *policies: PolicyStatus) -> None:
        """Publish as the leader's loop does."""
        self.policies.poll(0)
        status = Status(generation, published_ns=10**18, policies=policies)
        self.status.tell(status)
        write_status(self.folder, status)
        self.wired.published(generation)

    def attach(self, generation: int) -> None:
        """Attach as a worker does, and ring the bell."""
        self.worker.serve(POLICIES, generation)
        self.wired.attached()

    def configured(self) -> str:
        """Return the paths of all configurations."""
        objects = dict(self.api.objects)
        return " ".join("/".join((key[0], *key[2:])) for key in objects)

    def resources(self) -> list[str]:
        return [
            one
            for webhook in self.at(CONFIGURATION)["webhooks"]
            for rule in webhook["rules"]
            for one in rule["resources"]
        ]

    def at(self, path: str) -> Json:
        base, plural, name = path.rsplit("/", 2)
        namespace = ""
        if "/namespaces/" in base:
            base, _, namespace = base.partition("/namespaces/")
        return self.api.objects.get((base, namespace, plural, name))

    def ready(self) -> str:
        conditions = (self.at(POLICY).get("status") or {}).get("conditions") or ()
        return " ".join(one["status"] for one in conditions)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        serve_kinds(server, ("pods", "Pod"), ("secrets", "Secret"))
        yield server


@pytest.fixture
def leader(api: FakeApi, tmp_path: Path) -> Iterator[Leader]:
    found = Leader(api, tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def in_force(generation: int = 0, *, in_force: str = "") -> PolicyStatus:
    return PolicyStatus(
        "ClusterPolicy",
        "",
        "p",
        ready=not in_force,
        message="refused" if in_force else "",
        rule_count=1,
        generation=generation,
        in_force=in_force,
    )


def test_policy_is_registered_and_then_ready(leader: Leader) -> None:
    created = leader.api.put(POLICY, **policy())
    leader.until(lambda: "pods" in leader.resources())
    assert leader.ready() == "", "no worker has it"
    leader.heard()
    leader.publish(2, in_force())
    leader.work()
    assert leader.ready() == "", "it is published, and not attached"
    leader.attach(2)
    leader.work()
    assert leader.ready() == "True"
    told = msgspec.json.decode(
        leader.at(f"{KYVERNO}/configmaps/{REPLICAS}")["data"]["one"]
    )
    version = int(created["metadata"]["resourceVersion"])
    assert told["versions"]["clusterpolicies"] >= version, "the other replicas know"


VALIDATING = "/apis/policies.kyverno.io/v1beta1/validatingpolicies/v"


def validating_policy() -> Json:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["secrets"],
    }
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": "ValidatingPolicy",
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "true"}],
        },
    }


def test_cel_policy_is_registered_and_then_ready(
    leader: Leader,
) -> None:
    leader.api.put(VALIDATING, **validating_policy())
    leader.until(lambda: "secrets" in leader.resources())
    (webhook,) = leader.at(CONFIGURATION)["webhooks"]
    assert webhook["name"] == "vpol.validate.kyverno.svc-fail"
    version = str(leader.api.version)
    wait_for(lambda: leader.policies.cel_informers[0].notified_version == version)
    status = PolicyStatus(
        "ValidatingPolicy", "", "v", ready=True, message="Ready", rule_count=1
    )
    leader.publish(2, status)
    leader.work()
    assert "status" not in leader.at(VALIDATING)
    leader.attach(2)
    leader.work()
    found = leader.at(VALIDATING)["status"]["conditionStatus"]
    assert found["ready"] is True
    types = [(one["type"], one["status"]) for one in found["conditions"]]
    assert types == [("WebhookConfigured", "True"), ("RBACPermissionsGranted", "True")]


def test_workers_that_attach_early_are_noticed(
    leader: Leader,
) -> None:
    """The workers ring before the loop can announce its publication."""
    leader.api.put(POLICY, **policy())
    leader.until(lambda: "pods" in leader.resources())
    leader.heard()
    leader.attach(2)
    leader.work()
    assert leader.ready() == ""
    leader.publish(2, in_force())
    leader.work()
    assert leader.ready() == "True"


def test_workers_are_polled_without_a_bell(leader: Leader) -> None:
    leader.api.put(POLICY, **policy())
    leader.until(lambda: "pods" in leader.resources())
    leader.heard()
    leader.publish(2, in_force())
    leader.work()
    leader.worker.serve(POLICIES, 2)
    leader.work()
    assert leader.ready() == ""
    leader.pass_s(1)
    assert leader.ready() == "True"


def test_readiness_waits_only_for_other_replicas(leader: Leader) -> None:
    path = f"{KYVERNO}/configmaps/{REPLICAS}"

    def other(version: int) -> None:
        versions = {"clusterpolicies": version}
        text = msgspec.json.encode({"versions": versions, "beat": 1}).decode()
        leader.api.put(path, data={"two": text})

    other(1)
    leader.api.put(POLICY, **policy())
    leader.until(lambda: "pods" in leader.resources())
    leader.heard()
    leader.publish(2, in_force())
    leader.attach(2)
    wait_for(lambda: leader.wired.replicas.lagging("clusterpolicies", 10**6))
    leader.work()
    assert leader.ready() == ""
    other(10**6)
    leader.until(lambda: leader.ready() == "True")


def test_last_valid_version_of_a_rejected_policy_is_registered(
    leader: Leader,
) -> None:
    leader.api.put(POLICY, **policy())
    leader.until(lambda: "pods" in leader.resources())
    earlier = msgspec.json.encode({**policy(), "metadata": {"name": "p"}}).decode()
    leader.turned.turn(0.5)
    leader.api.put(POLICY, **policy("Secret"))
    leader.until(lambda: leader.resources() == ["secrets"])
    leader.turned.turn(0.5)
    leader.heard()
    leader.publish(2, in_force(in_force=earlier))
    leader.work()
    assert "pods" in leader.resources()


def test_deleted_or_edited_objects_are_restored(leader: Leader) -> None:
    leader.api.put(POLICY, **policy())
    leader.until(lambda: "pods" in leader.resources())
    leader.api.remove(CONFIGURATION)
    leader.until(lambda: leader.at(CONFIGURATION) is not None)
    leader.api.put(CONFIGURATION, **{**leader.at(CONFIGURATION), "webhooks": []})
    leader.until(lambda: leader.at(CONFIGURATION)["webhooks"])


def test_unserved_kind_is_retried_until_served(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8S: a new CRD is served a moment after it is established.

    Global context entries whose objects were rejected then retry at once.
    """
    hurried: list[int] = []
    monkeypatch.setattr(leader.context, "retry_now", lambda: hurried.append(1))
    leader.api.put(POLICY, **policy("CronTab"))
    leader.heard()
    leader.api.put(CRD, spec={})
    asked = leader.api.count("GET /apis$")
    leader.until(lambda: leader.api.count("GET /apis$") > asked)
    assert leader.resources() == []
    assert hurried == []
    serve_kinds(leader.api, ("pods", "Pod"), ("crontabs", "CronTab"))
    leader.pass_s(1.1)
    assert hurried == [1]
    assert leader.resources() == ["crontabs"]
    leader.pass_s(10)
    asked = leader.api.count("GET /apis$")
    leader.pass_s(50)
    assert leader.api.count("GET /apis$") - asked <= 1, "and then once a minute"


def test_operators_settings_are_registered(leader: Leader) -> None:
    leader.api.put(POLICY, **policy())
    leader.until(leader.resources)
    asked = {"webhookLabels": '{"a": "b"}'}
    leader.api.put(f"{KYVERNO}/configmaps/kyverno", data=asked)

    def labels() -> object:
        # The leader's loop checks this periodically.
        leader.configuration.poll()
        return leader.configuration.current.configuration.webhook_labels

    wait_for(labels)
    leader.work()
    assert leader.at(CONFIGURATION)["metadata"]["labels"]["a"] == "b"


def test_unreadable_entry_creates_an_event(leader: Leader) -> None:
    leader.api.put(
        ENTRY,
        apiVersion="kyverno.io/v2beta1",
        kind="GlobalContextEntry",
        spec={"kubernetesResource": {"version": "v1", "resource": "widgets"}},
    )
    leader.api.fault("GET .*widgets", *[403] * 1000)

    def states() -> object:
        # The leader's loop checks this periodically.
        leader.context.poll()
        return leader.context.states()

    wait_for(states)
    leader.pass_s(1.1)
    (condition,) = leader.at(ENTRY)["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "False")


def test_new_ca_is_registered_immediately(leader: Leader) -> None:
    """The API server must trust an authority before a replica uses its certificates."""
    path = f"{KYVERNO}/secrets/kyverno-svc.kyverno.svc.kyverno-tls-ca"
    leader.api.put(POLICY, **policy())
    leader.until(leader.resources)
    # The resyncs of webhooks and certificates are separate.
    leader.pass_s(0.5)
    leader.wired.queue.add(keys.WEBHOOKS)
    leader.work()
    leader.api.remove(path)
    leader.until(lambda: leader.at(path))
    leader.work()
    made = base64.b64decode(leader.at(path)["data"]["tls.crt"])
    (webhook,) = leader.at(CONFIGURATION)["webhooks"]
    assert made.strip() in base64.b64decode(webhook["clientConfig"]["caBundle"])


def calls_in_a_minute(leader: Leader) -> Counter[str]:
    """Count the calls by method and resource while nothing changes, after a while.

    Other objects change, so that the watches get bookmarks.
    """

    def all_heard() -> None:
        """Wait until every watch has the current state."""
        version = str(leader.api.version)
        wait_for(
            lambda: all(one.notified_version == version for one in leader.informers)
        )

    for _ in range(2):
        leader.pass_s(20)
        all_heard()
    before = len(leader.api.requests)
    for _ in range(6):
        leader.api.put(f"{KYVERNO}/events/other", note="x")
        all_heard()
        leader.publish(1)
        leader.pass_s(10)
    found = Counter[str]()
    for method, target, _ in leader.api.requests[before:]:
        path, _, query = target.partition("?")
        assert "watch=1" not in query, "the watches stay open"
        parts = path.split("/")
        found[f"{method} {parts[-2] or parts[-1]}"] += 1
    return found


def test_idle_holder_of_the_lease_makes_few_calls(leader: Leader) -> None:
    """Besides renewing the lease: heartbeats, reachability, aggregated API servers."""
    assert calls_in_a_minute(leader) == {
        "PATCH configmaps": 5,
        "PUT leases": 6,
        "GET api": 1,
        "GET apis": 1,
    }


def test_idle_replica_without_the_lease_makes_hardly_any_calls(leader: Leader) -> None:
    leader.election.release()
    assert calls_in_a_minute(leader) == {
        "PATCH configmaps": 5,
        "GET api": 1,
        "GET apis": 1,
    }


def test_leader_health_is_reported(leader: Leader) -> None:
    found = read_leader_health(leader.folder)
    assert found is not None
    assert found.trusted
    assert found.failing == ()
    assert 0 < found.confirmed_ns <= leader.policies.informers[0].last_message_ns
    leader.turned.turn(10 * 365 * 24 * 3600)
    leader.election.release()
    leader.work()
    found = read_leader_health(leader.folder)
    assert found is not None
    assert not found.trusted, "nobody renewed the certificate"


def test_a_deployment_that_may_not_be_read_is_in_the_health(
    api: FakeApi, tmp_path: Path
) -> None:
    """Whose pods answer is unknown then, so the paths stay those of Kyverno."""
    api.fault("/deployments", *[403] * 1000)
    leader = Leader(api, tmp_path, Settings(deployment_name="d"))
    try:
        for informer in leader.informers:
            informer.start()
        readable = [
            informer
            for informer in leader.informers
            if informer.scope.resource.plural != "deployments"
        ]
        wait_for(lambda: all(informer.synced for informer in readable))
        leader.publish(1)
        leader.pass_s(20)
        found = read_leader_health(leader.folder)
    finally:
        leader.stop()
    assert found is not None
    assert any("keep Kyverno's paths" in problem for problem in found.problems)


def test_leader_without_a_publication_has_no_health(
    api: FakeApi, tmp_path: Path
) -> None:
    """Workers get no policies from this leader, so the previous time stays valid."""
    before = LeaderHealth(trusted=True, confirmed_ns=5)
    write_leader_health(tmp_path, before)
    leader = Leader(api, tmp_path)
    try:
        for informer in leader.informers:
            informer.start()
        wait_for(lambda: all(one.synced for one in leader.informers))
        leader.pass_s(2)
    finally:
        leader.stop()
    found = read_leader_health(tmp_path)
    assert found is not None
    assert found.confirmed_ns == 5


def test_standby_writes_nothing(api: FakeApi, tmp_path: Path) -> None:
    """A leader without the lease still publishes its policies and its own health."""
    leader = Leader(api, tmp_path)
    api.put(POLICY, **policy())
    try:
        for informer in leader.informers:
            informer.start()
        wait_for(lambda: all(one.synced for one in leader.informers))
        leader.publish(1, in_force())
        leader.attach(1)
        leader.pass_s(12)
    finally:
        leader.stop()
    writes = {
        target.split("?")[0]
        for method, target, _ in api.requests
        if method in ("POST", "PUT", "PATCH", "DELETE")
    }
    assert writes <= {f"{KYVERNO}/configmaps", f"{KYVERNO}/configmaps/{REPLICAS}"}
    assert read_leader_health(tmp_path) is not None


def test_outage_recovery_takes_less_than_a_second(leader: Leader) -> None:
    """No policy is Ready before a webhook is registered for it."""
    leader.api.fault("(PUT|POST|GET) .*webhookconfigurations", *[403] * 10_000)
    leader.api.put(POLICY, **policy())
    leader.heard()
    leader.publish(2, in_force())
    leader.attach(2)
    leader.pass_s(3)
    assert leader.resources() == []
    assert leader.ready() == ""
    leader.api.faults.clear()
    leader.pass_s(1)
    assert "pods" in leader.resources()
    assert leader.ready() == "True"


def test_policy_is_ready_as_soon_as_it_is_registered(leader: Leader) -> None:
    """Otherwise, it would become Ready only after the back-off of its status."""
    leader.api.fault("(PUT|POST|GET) .*webhookconfigurations", *[403] * 10_000)
    leader.api.put(POLICY, **policy())
    leader.heard()
    leader.publish(2, in_force())
    leader.attach(2)
    leader.pass_s(60)
    leader.api.faults.clear()
    for _ in range(10_000):
        if "pods" in leader.resources():
            break
        leader.pass_s(0.1)
    leader.until(lambda: leader.ready() == "True")


def test_nothing_is_registered_before_the_first_publication(
    api: FakeApi, tmp_path: Path
) -> None:
    """Otherwise, the API server would call workers that have no policies."""
    leader = Leader(api, tmp_path)
    try:
        assert leader.election.step()
        for informer in leader.informers:
            informer.start()
        wait_for(lambda: all(one.synced for one in leader.informers))
        leader.pass_s(10)
        assert CONFIGURATION not in leader.configured()
        leader.publish(1)
        leader.attach(1)
        leader.pass_s(10)
        assert CONFIGURATION in leader.configured()
    finally:
        leader.stop()


def test_stopped_queue_starts_nothing(leader: Leader) -> None:
    leader.wired.queue.shut_down(drain=False)
    before = len([one for one in leader.api.requests if one[0] != "GET"])
    leader.api.put(POLICY, **policy())
    leader.heard()
    leader.pass_s(20)
    assert len([one for one in leader.api.requests if one[0] != "GET"]) == before
    assert leader.wired.gauges() == {
        "controllers_queue_depth": 0,
        "controllers_queue_dropped": 0,
    }


def paths_of(leader: Leader) -> set[str]:
    """Return the first part of the path of every registered webhook."""
    return {
        webhook["clientConfig"]["service"]["path"].split("/")[1]
        for raw in dict(leader.api.objects).values()
        for webhook in raw.get("webhooks") or ()
    }


def attach_callers(leader: Leader) -> Callers:
    """Publish the path segments as the leader's loop does, and attach them."""
    published = leader.wired.shared.replica.callers
    published.poll()
    published.published()
    generation = leader.page.generation(CALLERS) + 1
    leader.page.set_generation(CALLERS, generation)
    leader.worker.serve(CALLERS, generation)
    leader.wired.attached()
    return msgspec.json.decode(published.values()[CALLERS], type=Callers)


def test_segment_is_registered_in_every_path_after_workers_accept_it(
    leader: Leader,
) -> None:
    leader.api.put(POLICY, **policy())
    leader.until(leader.resources)
    leader.pass_s(3)
    assert not any(is_segment(one) for one in paths_of(leader))
    (segment,) = attach_callers(leader).segments
    leader.until(lambda: paths_of(leader) == {segment})


def test_segment_is_required_until_another_writer_registers_paths_without(
    leader: Leader,
) -> None:
    leader.api.put(POLICY, **policy())
    leader.until(leader.resources)
    (segment,) = attach_callers(leader).segments
    leader.until(lambda: paths_of(leader) == {segment})
    leader.pass_s(leader.wired.shared.replica.settings.caller_path_overlap_s + 3)

    def is_required_later() -> bool:
        # The watch may bring the registered paths only now.
        leader.pass_s(1)
        return attach_callers(leader).required

    leader.until(is_required_later)
    # Kyverno holds the lease and writes its own paths.
    leader.election.release()

    def is_free() -> bool:
        # The watch may bring Kyverno's paths only now.
        leader.pass_s(1)
        # A write that began with the lease may end after Kyverno's.
        found = leader.at(CONFIGURATION)
        services = [one["clientConfig"]["service"] for one in found["webhooks"]]
        if any(service["path"] != "/validate/fail" for service in services):
            for service in services:
                service["path"] = "/validate/fail"
            leader.api.put(CONFIGURATION, **found)
        return not attach_callers(leader).required

    leader.until(is_free)


def test_rollout_begins_and_a_persons_change_reaches_the_workers(
    leader: Leader,
) -> None:
    schedule = {"kyverno-mp.io/enforce-schedule": "10 -> 100 every 24h"}
    leader.api.put(POLICY, **{**policy(), "metadata": {"annotations": schedule}})
    path = "/api/v1/namespaces/kyverno/configmaps/kyverno-mp-rollouts"
    published = leader.wired.shared.replica.rollouts

    def phase() -> str:
        published.poll()
        texts = list(published.values().values())
        return msgspec.json.decode(texts[0])["phase"] if texts else ""

    def has_begun() -> bool:
        leader.pass_s(10)
        return phase() == "Progressing"

    leader.until(has_begun)
    (name, text), *_ = leader.at(path)["data"].items()
    paused = text.replace("Progressing", "Paused")
    leader.api.put(path, data={name: paused})
    leader.until(lambda: phase() == "Paused")


def test_a_denial_by_a_new_step_wakes_its_counter(api: FakeApi, tmp_path: Path) -> None:
    """The bell is where the workers ring, or a fall-back waits for a look."""
    leader = Leader(api, tmp_path)
    leader.wired.denials.start()
    wait_for(lambda: ring(tmp_path / "snapshot", DENIALS))
    leader.wired.denials.stop()
