"""Rounds of the admission role: certificates change hands, webhooks are kept."""

import base64
import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.admission import AdmissionControllers, Inputs
from kyverno_mp.controllers.certificates.plan import certificates_of, is_trusted
from kyverno_mp.controllers.certificates.reconcile import Kept
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.kube.resource import Resource, core
from tests.unit.kube.fake_api import FakeApi, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RULES = CertificateRules(algorithm="ECDSA")
SECRETS = "/api/v1/namespaces/kyverno/secrets/kyverno-svc.kyverno.svc.kyverno-tls-"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"
    "kyverno-resource-validating-webhook-cfg"
)
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
    """The controllers of one replica, and what it serves with."""

    def __init__(self, api: FakeApi, name: str = "one") -> None:
        self.directory = Directory([PODS])
        self.documents = [POLICY]
        self.kept: dict[tuple[str, str, str], str] = {}
        self.serves: Kept | None = None
        objects = Objects(api.client())
        terms = Terms(namespace="kyverno", name="kyverno", identity=name)
        self.election = Election(objects, terms)
        self.controllers = AdmissionControllers(
            objects,
            self.election,
            RULES,
            Inputs(
                documents=lambda: [msgspec.json.encode(one) for one in self.documents],
                directory=lambda: self.directory,
                options=lambda bundle: WebhookOptions(ca_bundle=bundle),
                owner=lambda: None,
                static=lambda _options: [],
                may_register=lambda: True,
                served=dict,
                kept=lambda: self.kept,
                behind=lambda _policy: (),
                serve_with=self._serve_with,
            ),
        )

    def _serve_with(self, kept: Kept) -> None:
        self.serves = kept

    def leaf(self) -> bytes:
        assert self.serves is not None
        return self.serves.certificate

    def rounds(self, start: datetime, count: int) -> datetime:
        """Do one round a second; return the time of the next."""
        for second in range(count):
            self.controllers.step(start + second * SECOND)
        return start + count * SECOND


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


def test_without_discovery_nothing_registered_is_emptied(api: FakeApi) -> None:
    """A leader that starts while discovery fails must not let all requests pass."""
    first = Replica(api)
    assert first.election.step()
    first.rounds(NOW, 6)
    before = registered(api)
    assert before["webhooks"]
    second = Replica(api)
    assert second.election.step()
    second.directory = Directory(())
    assert not second.controllers.step(NOW + 60 * SECOND)
    assert not second.controllers.step(NOW + 70 * SECOND)
    assert registered(api) == before
    second.directory = Directory([PODS, core("secrets")])
    second.controllers.step(NOW + 80 * SECOND)
    assert registered(api)["webhooks"] == before["webhooks"]


def test_a_deleted_authority_is_trusted_until_its_leaf_is_gone(api: FakeApi) -> None:
    """Both replicas are trusted at each moment, whichever pair they serve."""
    holder, other = Replica(api), Replica(api, "two")
    assert holder.election.step()
    holder.rounds(NOW, 6)
    other.rounds(NOW, 6)
    old, old_bundle = holder.leaf(), bundle_of(api)
    assert other.leaf() == old
    api.remove(SECRETS + "ca")
    at = NOW + 60 * SECOND
    other.rounds(at, 2)
    assert other.controllers.is_trusted(at), "it serves what callers still trust"
    for _ in range(20):
        assert holder.election.step()
        holder.rounds(at, 1)
        other.rounds(at, 1)
        assert trusts(api, holder.leaf(), at)
        assert trusts(api, other.leaf(), at)
        assert holder.controllers.is_trusted(at)
        assert other.controllers.is_trusted(at)
        at += SECOND
    assert holder.leaf() == other.leaf() != old
    at += 180 * SECOND
    holder.rounds(at, 1)
    assert trusts(api, holder.leaf(), at)
    assert not trusts(api, old, at)
    assert old_bundle.strip() not in bundle_of(api)


def test_a_replica_serves_on_when_the_pair_was_deleted(api: FakeApi) -> None:
    """It is ready: what it serves is in the workers' hands, not in the Secret."""
    holder, other = Replica(api), Replica(api, "two")
    assert holder.election.step()
    holder.rounds(NOW, 6)
    at = other.rounds(NOW, 6)
    api.remove(SECRETS + "pair")
    other.rounds(at, 1)
    assert other.controllers.is_trusted(at)


def test_an_expired_pair_is_replaced_at_once(api: FakeApi) -> None:
    holder = Replica(api)
    assert holder.election.step()
    holder.rounds(NOW, 6)
    old = holder.leaf()
    at = NOW + timedelta(days=151)
    holder.rounds(at, 1)
    assert holder.leaf() != old
    assert holder.controllers.is_trusted(at)


def test_of_a_refused_version_the_last_valid_one_is_registered(api: FakeApi) -> None:
    """It is what workers judge by; nothing would come to it otherwise."""
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
        holder.controllers.forget()
        at = holder.rounds(at, 1)
        assert registered(api)["webhooks"] == before
    # Known as refused only after it was registered by.
    holder.documents, holder.kept = [other], {}
    holder.controllers.forget()
    at = holder.rounds(at, 1)
    assert registered(api)["webhooks"] != before
    holder.kept = {("ClusterPolicy", "", "p"): json.dumps(POLICY)}
    holder.rounds(at, 1)
    assert registered(api)["webhooks"] == before


def test_a_refused_configuration_is_registered_without_conditions(api: FakeApi) -> None:
    """One policy must not keep all others from being registered."""
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


def test_a_changed_policy_is_registered_by_one_reading_and_one_writing(
    api: FakeApi,
) -> None:
    replica = Replica(api)
    replica.directory = Directory([PODS, SECRET])
    assert replica.election.step()
    replica.rounds(NOW, 6)
    replica.documents = [POLICY, other("secrets")]
    before = len(api.requests)
    assert replica.controllers.register()
    assert [call[0] for call in api.requests[before:]] == ["GET", "PUT"]
    (webhook,) = registered(api)["webhooks"]
    (rule,) = webhook["rules"]
    assert rule["resources"] == ["pods", "pods/ephemeralcontainers", "secrets"]
    version = registered(api)["metadata"]["resourceVersion"]
    assert replica.controllers.wrote(version)
    before = len(api.requests)
    assert replica.controllers.register()
    assert api.requests[before:] == []


def test_who_does_not_hold_the_lease_registers_nothing(api: FakeApi) -> None:
    holder, replica = Replica(api), Replica(api, "two")
    assert holder.election.step()
    holder.rounds(NOW, 6)
    replica.rounds(NOW, 6)
    replica.documents = []
    before = registered(api)
    assert not replica.controllers.register()
    assert replica.controllers.tell(NOW)
    assert registered(api) == before


def test_what_could_not_be_written_at_once_is_left_to_the_round(api: FakeApi) -> None:
    replica = Replica(api)
    assert replica.election.step()
    start = replica.rounds(NOW, 6)
    replica.documents = []
    api.fault("PUT .*webhookconfigurations", *[500] * 5)
    assert not replica.controllers.register()
    replica.controllers.forget()
    replica.rounds(start, 2)
    assert registered(api)["webhooks"] == []
