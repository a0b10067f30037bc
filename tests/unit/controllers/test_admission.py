"""Certificates are replaced and webhooks are maintained by the clock and by events."""

import base64
import copy
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.certificates import controller as certificates
from kyverno_mp.controllers.certificates.controller import CertificateController
from kyverno_mp.controllers.certificates.plan import certificates_of, is_trusted
from kyverno_mp.controllers.certificates.reconcile import CertificateSecrets
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.controllers.health_lease import HealthLease
from kyverno_mp.controllers.webhook_config import controller as webhooks
from kyverno_mp.controllers.webhook_config.controller import Inputs, WebhookController
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.kube.resource import Resource, core
from kyverno_mp.queues.reconcile import Controllers, Request
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.queues.turned_clock import TurnedClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RULES = CertificateRules(algorithm="ECDSA")
SECRETS = "/api/v1/namespaces/kyverno/secrets/kyverno-svc.kyverno.svc.kyverno-tls-"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"
    "kyverno-resource-validating-webhook-cfg"
)
CERTIFICATES = Request(certificates.NAME, certificates.ALL)
ALL = Request(webhooks.NAME, webhooks.ALL)
CHANGED = Request(webhooks.NAME, webhooks.POLICIES)
CONFIGURATION_CHANGED = Request(webhooks.NAME, webhooks.CONFIGURATION)
REFUSED = Request(webhooks.NAME, webhooks.REFUSED)
OWN = Request(webhooks.NAME, "/".join(CONFIGURATION.split("/")[-2:]))
PODS = Resource(group="", version="v1", plural="pods", kind="Pod")
SECRET = Resource(group="", version="v1", plural="secrets", kind="Secret")
POLICY: dict[str, Any] = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "rules": [
            {
                "name": "r",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {"message": "m", "pattern": {"kind": "Pod"}},
            }
        ]
    },
}


class Replica:
    """Certificates and webhooks of one replica, and the certificate that it serves."""

    def __init__(self, api: FakeApi, name: str = "one") -> None:
        self.turned = TurnedClock(NOW)
        self.directory = Directory([PODS])
        self.documents = [POLICY]
        self.kept: dict[tuple[str, str, str], str] = {}
        self.may_register = True
        self.own_version = ""
        self.health_clock_s = time.monotonic
        """No API server calls this replica, so the health timeout must not expire."""
        self.registrations = 0
        self.serves: CertificateSecrets | None = None
        self.election = Election(
            Objects(api.client()),
            Terms(namespace="kyverno", name="kyverno", identity=name),
        )
        self.queue: WorkQueue[Request] = WorkQueue(
            depth_max=20,
            backoff=Backoff(least_s=0.1, most_s=1.0),
            clock_s=self.turned.monotonic_s,
        )
        objects, clock = Objects(api.client()), self.turned.clock
        self.certificates = CertificateController(
            objects,
            self.election,
            RULES,
            clock,
            self._serve_with,
            lambda: self.queue.add(ALL),
        )
        self.webhooks = WebhookController(
            objects,
            self.election,
            self._inputs(objects),
            clock,
            compare_all=lambda: self.queue.add(ALL),
            on_registered=self._on_registered,
        )
        self.controllers = Controllers(
            self.queue,
            {certificates.NAME: self.certificates, webhooks.NAME: self.webhooks},
        )
        self.queue.add(CERTIFICATES)
        self.queue.add(ALL)

    def _inputs(self, objects: Objects) -> Inputs:
        guarded = objects.guarded(self.election.guard)

        def clock_s() -> float:
            return self.health_clock_s()

        return Inputs(
            documents=lambda: [msgspec.json.encode(one) for one in self.documents],
            directory=lambda: self.directory,
            ca_bundle=self.certificates.ca_bundle,
            options=lambda bundle: WebhookOptions(ca_bundle=bundle),
            owner=lambda: None,
            static=lambda _options: [],
            may_register=lambda: self.may_register,
            kept=lambda: self.kept,
            health=HealthLease(guarded, "kyverno", clock_s),
            version_of=lambda _key: self.own_version,
        )

    def _serve_with(self, secrets: CertificateSecrets) -> None:
        self.serves = secrets

    def _on_registered(self) -> None:
        self.registrations += 1

    def leaf(self) -> bytes:
        assert self.serves is not None
        return self.serves.certificate

    def at(self, now: datetime) -> None:
        """Set the time, and do the work that is due then."""
        self.turned.turn((now - self.turned.now()).total_seconds())
        self.controllers.work_due()

    def rounds(self, start: datetime, count: int) -> datetime:
        """Let ``count`` seconds pass, one by one; return the following time."""
        for second in range(count):
            self.at(start + second * SECOND)
        return start + count * SECOND

    def event(self, request: Request) -> None:
        """Let an event add a key, and do the work that is due."""
        self.queue.add(request)
        self.controllers.work_due()

    def is_retrying(self) -> bool:
        return self.queue.failures(ALL) > 0


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


def registered(api: FakeApi) -> dict[str, Any]:
    found = api.client().get(CONFIGURATION)
    assert isinstance(found, dict)
    return found


def bundle_of(api: FakeApi) -> bytes:
    (webhook,) = registered(api)["webhooks"]
    return base64.b64decode(webhook["clientConfig"]["caBundle"])


def trusts(api: FakeApi, leaf: bytes, at: datetime) -> bool:
    return is_trusted(certificates_of(leaf), certificates_of(bundle_of(api)), at)


def test_registrations_are_kept_without_discovery(api: FakeApi) -> None:
    """Otherwise, requests would bypass policies after a start with failed discovery."""
    first = Replica(api)
    assert first.election.step()
    first.rounds(NOW, 6)
    before = registered(api)
    assert before["webhooks"]
    second = Replica(api)
    assert second.election.step()
    second.directory = Directory(())
    second.rounds(NOW + 60 * SECOND, 10)
    assert second.is_retrying()
    assert registered(api) == before
    second.directory = Directory([PODS, core("secrets")])
    second.at(NOW + 80 * SECOND)
    assert not second.is_retrying()
    assert registered(api)["webhooks"] == before["webhooks"]


def test_deleted_ca_stays_trusted_until_its_certificate_expires(api: FakeApi) -> None:
    """Both replicas are trusted at any time, whichever pair they serve."""
    holder, other = Replica(api), Replica(api, "two")
    assert holder.election.step()
    holder.rounds(NOW, 6)
    other.rounds(NOW, 6)
    old, old_bundle = holder.leaf(), bundle_of(api)
    assert other.leaf() == old
    api.remove(SECRETS + "ca")
    at = NOW + 60 * SECOND
    other.rounds(at, 2)
    assert other.certificates.is_trusted(), "it serves what callers still trust"
    for _ in range(20):
        assert holder.election.step()
        holder.rounds(at, 1)
        other.rounds(at, 1)
        assert trusts(api, holder.leaf(), at)
        assert trusts(api, other.leaf(), at)
        assert holder.certificates.is_trusted()
        assert other.certificates.is_trusted()
        at += SECOND
    assert holder.leaf() == other.leaf() != old
    at += 180 * SECOND
    holder.rounds(at, 1)
    assert trusts(api, holder.leaf(), at)
    assert not trusts(api, old, at)
    assert old_bundle.strip() not in bundle_of(api)


def test_replica_keeps_serving_a_deleted_certificate(api: FakeApi) -> None:
    """The replica remains ready because its workers still hold the pair."""
    holder, other = Replica(api), Replica(api, "two")
    assert holder.election.step()
    holder.rounds(NOW, 6)
    at = other.rounds(NOW, 6)
    api.remove(SECRETS + "pair")
    other.rounds(at, 1)
    assert other.certificates.is_trusted()


def test_expired_certificate_is_replaced_immediately(api: FakeApi) -> None:
    holder = Replica(api)
    assert holder.election.step()
    holder.rounds(NOW, 6)
    old = holder.leaf()
    at = NOW + timedelta(days=151)
    holder.rounds(at, 1)
    assert holder.leaf() != old
    assert holder.certificates.is_trusted()


def test_last_valid_version_of_a_rejected_policy_is_registered(api: FakeApi) -> None:
    """Workers evaluate the last valid version, so its requests must arrive."""
    holder = Replica(api)
    assert holder.election.step()
    at = holder.rounds(NOW, 6)
    before = registered(api)["webhooks"]
    other = copy.deepcopy(POLICY)
    kinds = other["spec"]["rules"][0]["match"]["any"][0]["resources"]
    kinds["kinds"] = ["Secret"]
    holder.directory = Directory([PODS, SECRET])
    for refused in (other, {**POLICY, "spec": {"rules": "none"}}):
        holder.documents = [refused]
        holder.kept = {("ClusterPolicy", "", "p"): json.dumps(POLICY)}
        at = holder.rounds(at, 1)
        holder.event(CHANGED)
        assert registered(api)["webhooks"] == before
    # The rejection becomes known only after the version was registered.
    holder.documents, holder.kept = [other], {}
    holder.event(CHANGED)
    assert registered(api)["webhooks"] != before
    holder.kept = {("ClusterPolicy", "", "p"): json.dumps(POLICY)}
    holder.rounds(at, 11)
    assert registered(api)["webhooks"] == before


def test_rejected_configuration_is_registered_without_conditions(api: FakeApi) -> None:
    """One policy must not prevent the registration of all others."""
    holder = Replica(api)
    hooks = {"matchConditions": [{"name": "a", "expression": "true"}]}
    spec = {**POLICY["spec"], "webhookConfiguration": hooks}
    holder.documents = [{**POLICY, "spec": spec}]
    api.fault("POST .*/validatingwebhookconfigurations", 422)
    assert holder.election.step()
    holder.rounds(NOW, 6)
    (webhook,) = registered(api)["webhooks"]
    assert webhook["name"] == "validate.kyverno.svc-fail"
    assert "matchConditions" not in webhook


def other(name: str) -> dict[str, Any]:
    """Return a policy for another kind."""
    found = copy.deepcopy(POLICY)
    found["metadata"]["name"] = name
    found["spec"]["rules"][0]["match"]["any"][0]["resources"]["kinds"] = ["Secret"]
    return found


def led(api: FakeApi) -> Replica:
    """Return a replica that holds the lease and has registered everything."""
    replica = Replica(api)
    replica.directory = Directory([PODS, SECRET])
    assert replica.election.step()
    replica.rounds(NOW, 6)
    assert registered(api)["webhooks"]
    return replica


def resources(api: FakeApi) -> list[str]:
    return [
        resource
        for webhook in registered(api)["webhooks"]
        for rule in webhook["rules"]
        for resource in rule["resources"]
    ]


def test_changed_policy_takes_one_read_and_one_write(
    api: FakeApi,
) -> None:
    replica = led(api)
    replica.documents = [POLICY, other("secrets")]
    before, registrations = len(api.requests), replica.registrations
    replica.event(CHANGED)
    assert [call[0] for call in api.requests[before:]] == ["GET", "PUT"]
    assert resources(api) == ["pods", "pods/ephemeralcontainers", "secrets"]
    assert replica.registrations == registrations + 1, "statuses follow"
    before = len(api.requests)
    replica.rounds(replica.turned.now() + SECOND, 1)
    replica.event(CHANGED)
    assert api.requests[before:] == []


def test_own_writes_trigger_no_comparison_and_foreign_ones_do(
    api: FakeApi,
) -> None:
    replica = led(api)
    replica.documents = [POLICY, other("secrets")]
    replica.event(CHANGED)
    replica.own_version = registered(api)["metadata"]["resourceVersion"]
    before = len(api.requests)
    replica.event(OWN)
    assert api.requests[before:] == []
    api.remove(CONFIGURATION)
    replica.own_version = ""
    replica.event(OWN)
    assert "secrets" in resources(api)
    edited = registered(api)
    edited["webhooks"] = []
    replica.own_version = api.put(CONFIGURATION, **edited)["metadata"][
        "resourceVersion"
    ]
    replica.event(OWN)
    assert "secrets" in resources(api)


def test_deleted_objects_are_restored_without_an_event(api: FakeApi) -> None:
    replica = led(api)
    api.remove(CONFIGURATION)
    replica.rounds(replica.turned.now() + SECOND, 10)
    assert registered(api)["webhooks"]


def test_burst_of_policies_is_registered_together(api: FakeApi) -> None:
    """Changes wait for later changes of the burst, but not for the next resync."""
    replica = led(api)
    written: list[float] = []
    for number in range(100):
        replica.documents = [POLICY, other("secrets")][: 1 + number % 2]
        before = api.count("PUT .*webhookconfigurations")
        replica.event(CHANGED)
        if api.count("PUT .*webhookconfigurations") > before:
            written.append(replica.turned.passed_s)
        replica.turned.turn(0.01)
    assert written, "the first at once"
    assert len(written) < 20
    replica.rounds(replica.turned.now(), 1)
    replica.turned.turn(0.4)
    replica.controllers.work_due()
    assert "secrets" in resources(api), "the last is not forgotten"


def test_late_rejected_version_is_replaced_immediately(
    api: FakeApi,
) -> None:
    """Workers still use the earlier version, so requests for its kinds must arrive."""
    replica = led(api)
    replica.documents = [{**other("p")}]
    replica.event(CHANGED)
    assert resources(api) == ["secrets"]
    replica.turned.turn(1)
    replica.kept = {("ClusterPolicy", "", "p"): json.dumps(POLICY)}
    replica.event(REFUSED)
    assert resources(api) == ["pods", "pods/ephemeralcontainers"]
    before = len(api.requests)
    replica.turned.turn(1)
    replica.event(REFUSED)
    assert api.requests[before:] == [], "nothing else was refused"


def test_changed_configuration_recomputes_everything(api: FakeApi) -> None:
    replica = led(api)
    replica.documents = []
    replica.event(CONFIGURATION_CHANGED)
    assert registered(api)["webhooks"] == []


def test_standby_registers_nothing(api: FakeApi) -> None:
    led(api)
    replica = Replica(api, "two")
    replica.rounds(NOW, 6)
    replica.documents = []
    before = registered(api)
    for request in (CHANGED, ALL, CONFIGURATION_CHANGED, OWN):
        replica.event(request)
    assert registered(api) == before
    assert replica.webhooks.registered is None


def test_former_holder_registers_nothing_from_stale_state(api: FakeApi) -> None:
    """A replica that regains the lease compares everything first."""
    replica = led(api)
    replica.election.release()
    replica.documents = []
    requests = len(api.requests)
    replica.event(CHANGED)
    assert api.requests[requests:] == []
    assert replica.election.step()
    replica.event(CHANGED)
    assert registered(api)["webhooks"] == []
    assert replica.webhooks.registered is not None
    assert replica.webhooks.registered.term == replica.election.terms_held == 2


def test_reacquired_lease_repairs_another_holders_writes(
    api: FakeApi,
) -> None:
    """The webhooks are restored even if this replica received no event meanwhile."""
    replica = led(api)
    replica.election.release()
    api.remove(CONFIGURATION)
    assert replica.election.step()
    replica.event(CHANGED)
    assert registered(api)["webhooks"]


def test_standby_serves_a_certificate_due_for_renewal(
    api: FakeApi,
) -> None:
    """The lease holder renews the pair; until then, the old pair is valid."""
    led(api)
    replica = Replica(api, "two")
    replica.rounds(NOW + timedelta(days=140), 5)
    assert replica.certificates.is_trusted()


def test_failed_writes_are_retried_soon(api: FakeApi) -> None:
    replica = led(api)
    replica.documents = []
    api.fault("PUT .*webhookconfigurations", *[500] * 20)
    replica.event(CHANGED)
    assert registered(api)["webhooks"]
    assert replica.is_retrying()
    api.faults.clear()
    replica.turned.turn(0.1)
    replica.controllers.work_due()
    assert registered(api)["webhooks"] == []
    assert not replica.is_retrying()


def test_nothing_is_registered_before_workers_can_answer(api: FakeApi) -> None:
    """Workers check for their first certificate each second, and need policies."""
    replica = Replica(api)
    assert replica.election.step()
    replica.may_register = False
    for tenth in range(60):
        replica.at(NOW + tenth * SECOND / 10)
        assert replica.certificates.is_trusted() is (tenth >= 30)
        assert bool(replica.certificates.ca_bundle()) is (tenth >= 30)
    assert replica.is_retrying()
    assert api.count("POST .*webhookconfigurations") == 0
    replica.may_register = True
    replica.rounds(replica.turned.now() + SECOND, 1)
    assert registered(api)["webhooks"]


def test_unreachable_webhooks_are_unregistered(
    api: FakeApi,
) -> None:
    """No API server calls this replica, so the time in the health lease is constant."""
    replica = Replica(api)
    replica.health_clock_s = replica.turned.monotonic_s
    assert replica.election.step()
    at = replica.rounds(NOW, 90)
    assert registered(api)["webhooks"]
    replica.rounds(at, 40)
    assert registered(api)["webhooks"] == []
    assert not replica.webhooks.answers()


def test_clock_set_back_takes_no_certificate_from_the_workers(
    api: FakeApi,
) -> None:
    """Otherwise, a trusted replica would lose its readiness and its CA bundle."""
    replica = Replica(api)
    assert replica.election.step()
    replica.rounds(NOW, 6)
    assert replica.certificates.is_trusted()
    replica.turned.turn(-5.0)
    assert replica.certificates.is_trusted()
    assert replica.certificates.ca_bundle()
