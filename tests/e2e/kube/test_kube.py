"""Our rooms kube and controllers against a real API server, without our processes."""

import signal
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.certificates.reconcile import reconcile as keep_certificates
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.controllers.webhook_config.reconcile import (
    reconcile,
    remove_all,
)
from kyverno_mp.controllers.webhook_config.resources import desired
from kyverno_mp.controllers.webhook_config.static import (
    admission_configurations,
    cleanup_configurations,
)
from kyverno_mp.errors import (
    DependencyError,
    KubeConflict,
    KubeExpired,
    KubeNotFound,
)
from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.events import EVENTS, EventInfo, Events, Reference
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Resource, core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all, watch
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.values.kubernetes.kinds import parse_kind
from tests.e2e.conftest import Cluster
from tests.waiting import soon_ns, wait_for

CONFIG_MAPS = core("configmaps")
NAMESPACES = core("namespaces", namespaced=False)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    client = Client(Pool(from_kubeconfig(cluster.kubeconfig)), "kyverno-mp-test")
    yield client
    client.close()


@pytest.fixture
def objects(client: Client) -> Objects:
    return Objects(client)


@pytest.fixture
def namespace(objects: Objects) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    objects.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    objects.delete(NAMESPACES, ("", name))


def config_map(namespace: str, name: str, **data: str) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "labels": {"test": "kube"}}
    return {"metadata": metadata, "data": data}


def test_verbs(objects: Objects, namespace: str) -> None:
    objects.create(CONFIG_MAPS, config_map(namespace, "m", n="0"))
    with pytest.raises(KubeConflict):
        objects.create(CONFIG_MAPS, config_map(namespace, "m"))
    key = (namespace, "m")
    stale = objects.find(CONFIG_MAPS, key)
    assert stale is not None
    objects.change(CONFIG_MAPS, key, lambda raw: {**raw, "data": {"n": "1"}})
    with pytest.raises(KubeConflict):
        objects.replace(CONFIG_MAPS, stale)
    objects.merge(CONFIG_MAPS, key, {"data": {"x": "y"}})
    raw = {**config_map(namespace, "m", z="1"), "apiVersion": "v1", "kind": "ConfigMap"}
    applied = objects.apply(CONFIG_MAPS, raw)
    assert applied["data"] == {"n": "1", "x": "y", "z": "1"}
    assert objects.delete(CONFIG_MAPS, key, uid=applied["metadata"]["uid"])
    with pytest.raises(KubeNotFound):
        objects.replace(CONFIG_MAPS, applied)


def test_paged_list_and_informer(
    client: Client, objects: Objects, namespace: str
) -> None:
    for number in range(30):
        objects.create(CONFIG_MAPS, config_map(namespace, f"m{number}", n=str(number)))
    scope = WatchScope(
        resource=CONFIG_MAPS, namespace=namespace, label_selector="test=kube"
    )
    informer = Informer(client, scope, bytes)
    keys: list[object] = []
    informer.on_change(keys.append)
    informer.start()
    assert informer.wait_synced(10)
    assert len(informer) == 30
    objects.delete(CONFIG_MAPS, (namespace, "m0"))
    wait_for(lambda: len(informer) == 29)
    objects.merge(CONFIG_MAPS, (namespace, "m1"), {"data": {"n": "x"}})
    wait_for(lambda: b'"n":"x"' in (informer.get((namespace, "m1")) or b""))
    # No longer selected: the API server sends a deletion.
    objects.merge(CONFIG_MAPS, (namespace, "m2"), {"metadata": {"labels": None}})
    wait_for(lambda: informer.get((namespace, "m2")) is None)
    assert informer.lists == 1
    started = time.monotonic()
    informer.stop()
    # The watch itself would last for minutes.
    assert time.monotonic() - started < 20


def test_metadata_only_informer_receives_no_data(
    client: Client, objects: Objects, namespace: str
) -> None:
    objects.create(CONFIG_MAPS, config_map(namespace, "m", big="x" * 1000))
    scope = WatchScope(
        resource=CONFIG_MAPS,
        namespace=namespace,
        # K8S: a new namespace gets its default ConfigMap a moment later.
        field_selector="metadata.name=m",
        metadata_only=True,
    )
    seen: list[bytes] = []
    version = list_all(
        client, scope, lambda raw: seen.append(bytes(raw)), restart=seen.clear
    )
    assert not any(b"xxx" in raw for raw in seen)
    objects.merge(CONFIG_MAPS, (namespace, "m"), {"metadata": {"labels": {"a": "b"}}})
    with watch(client, scope, version, 10.0) as (_, changes):
        change = next(changes)
    assert change.type == "MODIFIED"
    assert msgspec.json.decode(change.object)["kind"] == "PartialObjectMetadata"


def test_informer_survives_a_killed_api_server(
    cluster: Cluster, client: Client, objects: Objects, namespace: str
) -> None:
    if cluster.plane is None:
        pytest.skip("the cluster is not ours to kill")
    scope = WatchScope(resource=CONFIG_MAPS, namespace=namespace)
    informer = Informer(client, scope, bytes)
    informer.start()
    assert informer.wait_synced(10)
    objects.create(CONFIG_MAPS, config_map(namespace, "before"))
    wait_for(lambda: informer.get((namespace, "before")))
    cluster.plane.apiserver.stop(signal.SIGKILL)
    wait_for(lambda: informer.failures)
    assert informer.get((namespace, "before"))
    cluster.plane.apiserver.start()
    wait_for(lambda: _answers(client))
    objects.create(CONFIG_MAPS, config_map(namespace, "after"))
    wait_for(lambda: informer.get((namespace, "after")))
    informer.stop()
    # The new server's cache is empty: older versions are gone.
    with (
        pytest.raises(KubeExpired),
        watch(client, WatchScope(resource=CONFIG_MAPS), "1", 10.0) as (_, changes),
    ):
        next(changes)


def _answers(client: Client) -> bool:
    try:
        client.get("/readyz/ping", deadline_ns=soon_ns(1))
    except DependencyError as error:
        return error.code == "kube.answer"
    return True


def test_discovery(client: Client) -> None:
    discovery = Discovery(client)
    assert discovery.refresh()
    # K8S: an API server that was killed a moment ago serves its CRDs one by one.
    wait_for(lambda: not discovery.refresh())
    find = discovery.directory.find
    (pods,) = find(parse_kind("Pod"))
    assert (pods.api_version, pods.plural, pods.namespaced) == ("v1", "pods", True)
    (scale,) = find(parse_kind("Deployment/scale"))
    assert (scale.api_version, scale.name) == ("apps/v1", "deployments/scale")
    (namespaces,) = find(parse_kind("Namespace"))
    assert not namespaces.namespaced
    assert {one.name for one in find(parse_kind("Pod/*"))} >= {"pods/exec", "pods/log"}


def test_two_replicas_and_a_lease(objects: Objects, namespace: str) -> None:
    def replica(name: str) -> Election:
        # With periods of a second: a lease of six seconds outlives a slow call.
        terms = Terms(namespace=namespace, name="l", identity=name, retry_s=1.0)
        return Election(objects, terms)

    one, two = replica("one"), replica("two")
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        wait_for(one.holds)
        assert not two.step()
        time.sleep(2)
        assert not two.step()
        assert one.holds()
    finally:
        one.stop()
        thread.join()
    wait_for(two.step)
    assert not one.holds()


def test_events_are_accepted(objects: Objects, namespace: str) -> None:
    clock = [0]
    sink = Events(objects, "host", clock_ns=lambda: clock[0] * 10**9)
    about = Reference("v1", "ConfigMap", "m", namespace=namespace)
    info = EventInfo(
        regarding=about,
        related=Reference("kyverno.io/v1", "ClusterPolicy", "p"),
        reason="PolicyViolation",
        action="Resource Blocked",
        note="n",
        controller="kyverno-admission",
    )
    sink.submit(info)
    sink.flush()
    sink.submit(info)
    clock[0] = 60
    sink.flush()
    assert (sink.written, sink.dropped) == (1, 0)
    listing = objects._client.get(EVENTS.collection(namespace))
    (event,) = listing["items"]
    assert event["series"]["count"] == 2


def test_certificates(objects: Objects, namespace: str) -> None:
    rules = CertificateRules(namespace=namespace, algorithm="ECDSA")
    now = datetime.now(UTC)
    kept = keep_certificates(objects, rules, now)
    assert keep_certificates(objects, rules, now) == kept
    later = keep_certificates(objects, rules, now + rules.ca_lifetime)
    assert later.ca_bundle != kept.ca_bundle


def test_webhook_configurations_are_stored_as_written(
    client: Client, objects: Objects, namespace: str
) -> None:
    """Nothing is rejected, and nothing is written twice: we know the defaults."""
    discovery = Discovery(client)
    discovery.refresh()
    kept = keep_certificates(
        objects,
        CertificateRules(namespace=namespace, algorithm="ECDSA"),
        datetime.now(UTC),
    )
    options = WebhookOptions(
        ca_bundle=kept.ca_bundle,
        namespace=namespace,
        object_selector={"matchLabels": {"never": "there"}},
        annotations={"a": "b"},
        match_conditions=({"name": "never", "expression": "false"},),
    )
    own = {"matchConditions": [{"name": "c", "expression": "false"}]}
    found = desired(
        [
            policy("pods", "Pod"),
            policy("exec", "Pod/exec", webhookConfiguration=own),
            policy("ignored", "ConfigMap", failurePolicy="Ignore"),
            policy("exec", "*", namespace=namespace),
        ],
        discovery.directory,
        options,
    )
    wanted = [
        found.validating,
        found.mutating,
        *admission_configurations(options),
        *cleanup_configurations(options),
    ]
    try:
        assert reconcile(objects, wanted) == len(wanted)
        assert reconcile(objects, wanted) == 0
        assert len(found.validating["webhooks"]) == 3
    finally:
        assert remove_all(client, objects) == len(wanted)


def policy(
    name: str, kind: str, namespace: str = "", **spec: object
) -> ClusterPolicy | Policy:
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": [kind]}}]},
        "validate": {"message": "m", "pattern": {"metadata": {"name": "?*"}}},
    }
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "Policy" if namespace else "ClusterPolicy",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"rules": [rule], **spec},
        }
    )
    assert isinstance(document, ClusterPolicy | Policy)
    return document


def test_new_kind_appears_at_the_next_refresh(client: Client, objects: Objects) -> None:
    definitions = Resource(
        group="apiextensions.k8s.io",
        version="v1",
        plural="customresourcedefinitions",
        namespaced=False,
    )
    group = f"g{uuid.uuid4().hex[:6]}.example.com"
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    raw = {
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [version],
        },
    }
    discovery = Discovery(client)
    discovery.refresh()
    objects.create(definitions, raw)
    try:
        wait_for(lambda: discovery.refresh() and _knows(discovery, group))
    finally:
        objects.delete(definitions, ("", f"widgets.{group}"))


def _knows(discovery: Discovery, group: str) -> bool:
    return bool(discovery.directory.find(parse_kind(f"{group}/v1/Widget")))
