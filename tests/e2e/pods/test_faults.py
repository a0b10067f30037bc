"""Disturb a real control plane and our processes; check policies and reviews.

The outcomes are in docs/faults.md. A Pod that a policy in force forbids must never be
created: ``Guarded`` requests one all the time.
"""

import base64
import contextlib
import http.client
import os
import signal
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import yaml

from kyverno_mp.controllers.certificates.make import (
    certificate_pem,
    key_pem,
    make_ca,
    make_key,
    make_server,
)
from kyverno_mp.controllers.certificates.plan import certificates_of
from kyverno_mp.controllers.certificates.reconcile import SECRETS
from kyverno_mp.controllers.certificates.rules import (
    CERTIFICATE,
    KEY,
    MANAGED_BY,
    MANAGER,
    SECRET_TYPE,
    CertificateRules,
)
from kyverno_mp.controllers.webhook_config.options import VALIDATING
from kyverno_mp.controllers.webhook_config.reconcile import RESOURCES
from kyverno_mp.errors import DependencyError, KubeRefused
from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.policy_resources import RULE_POLICIES
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane, Program
from tests.e2e.crds import install_crds
from tests.e2e.cutting_proxy import CuttingProxy
from tests.e2e.fleet import (
    Fleet,
    Guarded,
    Thief,
    connect,
    holder_of,
    pod,
    policy,
    review_on,
    wait_for,
)
from tests.e2e.product import NAMESPACE
from tests.waiting import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

DOWN_S: Final = float(os.environ.get("E2E_DOWN_S", "12"))
"""How long the API server is away; the full test needs 60."""
CONFIG_MAPS: Final = core("configmaps")
NAMESPACES: Final = core("namespaces", namespaced=False)
RESOURCE_WEBHOOK: Final = ("", "kyverno-resource-validating-webhook-cfg")
POLICY_WEBHOOK: Final = ("", "kyverno-policy-validating-webhook-cfg")


@pytest.fixture(scope="module")
def plane(cluster: Cluster, api: Api) -> ControlPlane:
    if cluster.plane is None:
        pytest.skip("the cluster is not ours to harm")
    install_crds(api)
    return cluster.plane


@pytest.fixture
def fleet(plane: ControlPlane, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(plane, tmp_path)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()
        print(fleet.product.program.log.read_text()[-6000:])


def restart(program: Program, away_s: float = 0.0) -> None:
    """Kill a program of the control plane and start it again."""
    program.stop(signal.SIGKILL)
    time.sleep(away_s)
    program.start()


def test_api_server_outage(fleet: Fleet) -> None:
    """Reviews are answered from the snapshot; afterwards nothing needs a restart.

    This includes workers that started meanwhile, while a new leader has no API server.
    """
    fleet.put(policy("away", "team"))
    fleet.plane.apiserver.stop(signal.SIGKILL)
    with Guarded(lambda: "allowed" if fleet.review() else "denied") as guarded:
        os.kill(fleet.processes()["leader"], signal.SIGKILL)
        time.sleep(DOWN_S / 2)
        for pid in fleet.workers():
            os.kill(pid, signal.SIGKILL)
        time.sleep(DOWN_S / 2)
        wait_for(lambda: fleet.review(team="a"))
    assert guarded.answers["denied"] > DOWN_S
    before = fleet.processes()
    fleet.plane.apiserver.start()
    wait_for(lambda: fleet.ask() == "denied")
    fleet.make(policy("after", "owner"))
    wait_for(lambda: fleet.ask(team="a") == "denied")
    wait_for(lambda: fleet.ready("after") == "True")
    wait_for(fleet.is_ready)
    assert fleet.processes() == before


def test_etcd_restart(fleet: Fleet) -> None:
    fleet.put(policy("etcd", "team"))
    before = fleet.processes()
    with Guarded(fleet.ask):
        restart(fleet.plane.etcd, away_s=5.0)
        wait_for(lambda: fleet.ask() == "denied")
    fleet.make(policy("after", "owner"))
    wait_for(lambda: fleet.ask(team="a") == "denied")
    assert fleet.processes() == before


@pytest.mark.parametrize("name", ["leader", "webhook", "health", "worker"])
def test_killed_process(fleet: Fleet, name: str) -> None:
    """Nothing forbidden passes; it is back within seconds, and policies are updated."""
    fleet.put(policy("killed", "team"))
    with Guarded(fleet.ask) as guarded:
        wait_for(lambda: guarded.answers["denied"] > 5)
        known = fleet.workers() if name == "worker" else [fleet.processes()[name]]
        os.kill(known[0], signal.SIGKILL)
        if name == "worker":
            wait_for(lambda: len(set(fleet.workers()) - {known[0]}) == 2)
        else:
            wait_for(lambda: fleet.processes()[name] not in (0, known[0]))
        wait_for(fleet.is_ready)
        denied = guarded.answers["denied"]
        wait_for(lambda: guarded.answers["denied"] > denied + 5)
    if name in ("leader", "health"):
        assert guarded.answers["failed"] == 0, guarded.answers
    # A worker loses its current reviews, and failurePolicy decides them.
    assert guarded.answers["failed"] <= 60, guarded.answers
    fleet.put(policy("later", "owner"))
    assert fleet.ask(team="a") == "denied"


def test_killed_supervisor(fleet: Fleet) -> None:
    """All processes end; Pods are rejected, not admitted, until the pod is back."""
    fleet.put(policy("killed", "team"))
    family = psutil.Process(fleet.product.program.pid).children(recursive=True)
    with Guarded(fleet.ask):
        fleet.product.program.stop(signal.SIGKILL)
        _, left = psutil.wait_procs(family, timeout=HANG_S)
        assert left == []
        assert fleet.ask(team="a") == "failed"
        fleet.product.start()
        wait_for(lambda: fleet.ask() == "denied")
    assert fleet.ask(team="a") == "allowed"


def test_stolen_lease(fleet: Fleet) -> None:
    """The loser writes nothing, keeps serving, and later takes the lease back."""
    fleet.put(policy("stolen", "team"))
    ours = holder_of(fleet)
    before = fleet.processes()
    validating = RESOURCES[VALIDATING]
    with Thief(fleet):
        time.sleep(3.0)
        assert fleet.objects.delete(validating, RESOURCE_WEBHOOK)
        time.sleep(8.0)
        assert fleet.objects.find(validating, RESOURCE_WEBHOOK) is None
        assert holder_of(fleet) == "thief"
        assert fleet.review() is False
        assert fleet.is_ready()
    wait_for(lambda: holder_of(fleet) == ours)
    wait_for(lambda: fleet.ask() == "denied")
    assert fleet.processes() == before


def test_invalid_policy_that_passed_admission(fleet: Fleet) -> None:
    """The last valid version stays in force, and the status has the reason."""
    fleet.put(policy("forced", "team"))
    with Thief(fleet):
        # While another identity holds the lease, the webhook is not restored.
        time.sleep(3.0)
        assert fleet.objects.delete(RESOURCES[VALIDATING], POLICY_WEBHOOK)
        wait_for(lambda: _forced(fleet))
        time.sleep(2.0)
        assert fleet.ask() == "denied"
        assert fleet.ask(team="a") == "allowed"
    wait_for(lambda: fleet.ready("forced") == "False")
    assert "nowhere" in fleet.condition("forced")["message"]
    assert fleet.ask() == "denied"
    good = policy("forced", "owner")
    fleet.objects.change(
        RULE_POLICIES.cluster, ("", "forced"), lambda raw: {**raw, "spec": good["spec"]}
    )
    wait_for(lambda: fleet.ask(team="a") == "denied")
    wait_for(lambda: fleet.ready("forced") == "True")


def _forced(fleet: Fleet) -> bool:
    def spoil(raw: dict[str, Any]) -> dict[str, Any]:
        raw["spec"]["rules"][0]["validate"]["pattern"] = {"a": "{{ nowhere.x }}"}
        return raw

    try:
        fleet.objects.change(RULE_POLICIES.cluster, ("", "forced"), spoil)
    except KubeRefused:
        # The API server has not noticed yet that the webhook is gone.
        return False
    return True


def test_deleted_config_map(fleet: Fleet) -> None:
    """A rule that cannot read its data is an error, and failurePolicy decides."""
    data = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "teams",
            "namespace": "default",
            "labels": {"cache.kyverno.io/enabled": "true"},
        },
        "data": {"team": "a"},
    }
    fleet.objects.create(CONFIG_MAPS, data)
    reading = policy("reads", "team")
    rule = reading["spec"]["rules"][0]
    place = {"name": "teams", "namespace": "default"}
    rule["context"] = [{"name": "cm", "configMap": place}]
    rule["validate"]["pattern"] = {
        "metadata": {"labels": {"team": "{{ cm.data.team }}"}}
    }
    fleet.put(reading)
    wait_for(lambda: fleet.ask(team="a") == "allowed")
    assert fleet.ask(team="b") == "denied"
    fleet.objects.delete(CONFIG_MAPS, ("default", "teams"))
    wait_for(lambda: fleet.ask(team="a") != "allowed")
    for _ in range(20):
        assert fleet.ask(team="a") != "allowed"
        assert fleet.ask(team="b") != "allowed"
    fleet.objects.create(CONFIG_MAPS, data)
    wait_for(lambda: fleet.ask(team="a") == "allowed")
    assert fleet.ask(team="b") == "denied"
    fleet.objects.delete(CONFIG_MAPS, ("default", "teams"))


def short_lived(rules: CertificateRules, lives: timedelta) -> tuple[bytes, ...]:
    """Create an authority and a leaf that expire after ``lives``: two pairs of PEM."""
    now = datetime.now(UTC)
    short = CertificateRules(
        namespace=rules.namespace,
        service=rules.service,
        server=rules.server,
        ca_lifetime=lives,
        tls_lifetime=lives,
    )
    ca_key, key = make_key("ECDSA"), make_key("ECDSA")
    authority = make_ca(ca_key, now, short)
    leaf = make_server(key, authority, ca_key, now, short)
    return (
        certificate_pem(authority),
        key_pem(ca_key),
        certificate_pem(leaf),
        key_pem(key),
    )


def secret(name: str, certificate: bytes, key: bytes) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SECRET_TYPE,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {MANAGED_BY: MANAGER},
        },
        "data": {
            CERTIFICATE: base64.b64encode(certificate).decode(),
            KEY: base64.b64encode(key).decode(),
        },
    }


def serial_of(link: http.client.HTTPSConnection) -> int:
    """Return the serial number of the certificate of a connection."""
    pem = ssl.DER_cert_to_PEM_cert(link.sock.getpeercert(binary_form=True) or b"")
    return certificates_of(pem.encode())[0].serial_number


def test_certificates_near_expiry(plane: ControlPlane, tmp_path: Path) -> None:
    """Both are renewed in time; no connection is dropped, every review is answered."""
    # With more workers, connections may be asked to move.
    fleet = Fleet(plane, tmp_path, workers=1)
    link = connect(fleet.product.port)
    rules = CertificateRules(
        namespace=NAMESPACE, server=f"127.0.0.1:{fleet.product.port}"
    )
    # A certificate is renewed this long before its end: here in a few seconds.
    lives = rules.renew_before + timedelta(seconds=40)
    ca_pem, ca_key, leaf, key = short_lived(rules, lives)
    with contextlib.suppress(DependencyError):
        fleet.objects.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    for name in (rules.ca_name, rules.tls_name):
        fleet.objects.delete(SECRETS, (NAMESPACE, name))
    fleet.objects.create(SECRETS, secret(rules.ca_name, ca_pem, ca_key))
    fleet.objects.create(SECRETS, secret(rules.tls_name, leaf, key))
    try:
        fleet.start()
        fleet.put(policy("expiry", "team"))
        assert review_on(link, pod())["allowed"] is False
        first = serial_of(link)
        assert first == certificates_of(leaf)[0].serial_number

        def renewed() -> bool:
            assert review_on(link, pod())["allowed"] is False
            found = fleet.objects.find(SECRETS, (NAMESPACE, rules.tls_name))
            assert found is not None
            return bool(base64.b64decode(found["data"][CERTIFICATE]) != leaf)

        with Guarded(fleet.ask) as guarded:
            wait_for(renewed)
            wait_for(lambda: _serial_now(fleet) != first)
            denied = guarded.answers["denied"]
            wait_for(lambda: guarded.answers["denied"] > denied + 20)
        assert guarded.answers["failed"] == 0, guarded.answers
        # The old connection continues, and the old authority stays in the bundle.
        assert review_on(link, pod())["allowed"] is False
        assert serial_of(link) == first
        found = fleet.objects.find(SECRETS, (NAMESPACE, rules.ca_name))
        assert found is not None
        bundle = certificates_of(base64.b64decode(found["data"][CERTIFICATE]))
        assert bundle[0] == certificates_of(ca_pem)[0]
        assert len(bundle) == 2
    finally:
        link.close()
        fleet.stop()
        for name in (rules.ca_name, rules.tls_name):
            fleet.objects.delete(SECRETS, (NAMESPACE, name))
        fleet.client.close()
        print(fleet.product.program.log.read_text()[-6000:])


@pytest.mark.parametrize("part", ["ca_name", "tls_name"])
def test_deleted_certificate_secret(fleet: Fleet, part: str) -> None:
    """No call fails: the old authority is trusted until the new pair is served."""
    fleet.put(policy("secrets", "team"))
    rules = CertificateRules(namespace=NAMESPACE)
    first = _serial_now(fleet)
    with Guarded(fleet.ask) as guarded:
        assert fleet.objects.delete(SECRETS, (NAMESPACE, getattr(rules, part)))
        wait_for(lambda: _serial_now(fleet) != first)
        denied = guarded.answers["denied"]
        wait_for(lambda: guarded.answers["denied"] > denied + 20)
    assert guarded.answers["failed"] == 0, guarded.answers
    assert guarded.answers["allowed"] == 0, guarded.answers


def _serial_now(fleet: Fleet) -> int:
    link = connect(fleet.product.port)
    with contextlib.closing(link):
        link.connect()
        return serial_of(link)


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(plane.port)
    proxy.start()
    yield proxy
    proxy.stop()


def through(plane: ControlPlane, proxy: CuttingProxy, folder: Path) -> Path:
    """Write a kubeconfig that uses the proxy."""
    content = yaml.safe_load(plane.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = folder / "proxied.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content))
    return path


def test_silent_watch(
    plane: ControlPlane, proxy: CuttingProxy, tmp_path: Path, api: Api
) -> None:
    """An open connection without any data is replaced."""
    kubeconfig = through(plane, proxy, tmp_path)
    client = Client(Pool(from_kubeconfig(kubeconfig)), "e2e-faults")
    scope = WatchScope(resource=CONFIG_MAPS, namespace="default")
    informer = Informer(client, scope, whole, silence_s=3.0)
    informer.start()
    assert informer.wait_synced(10)
    path = "/api/v1/namespaces/default/configmaps"
    try:
        api.create(path, {"metadata": {"name": "heard"}})
        wait_for(lambda: informer.get(("default", "heard")))
        assert proxy.mute() > 0
        api.create(path, {"metadata": {"name": "silent"}})
        assert informer.get(("default", "silent")) is None
        wait_for(lambda: informer.get(("default", "silent")))
        assert informer.lists == 1, "what was missed came by the watch"
    finally:
        informer.stop()
        client.close()
        for name in ("heard", "silent"):
            api.delete(f"{path}/{name}")


def test_interrupted_watch_then_410_gone(
    plane: ControlPlane, proxy: CuttingProxy, tmp_path: Path
) -> None:
    """Informers also report objects that were deleted meanwhile."""
    kubeconfig = str(through(plane, proxy, tmp_path))
    fleet = Fleet(plane, tmp_path, KUBECONFIG=kubeconfig)
    fleet.start()
    try:
        fleet.put(policy("deleted-meanwhile", "team"))
        fleet.put(policy("stays", "owner"))
        before = fleet.processes()
        proxy.refuse(refuses=True)
        assert proxy.cut() > 0
        fleet.objects.delete(RULE_POLICIES.cluster, ("", "deleted-meanwhile"))
        fleet.make(policy("made-meanwhile", "tier"))
        assert fleet.review(owner="a") is False
        # The new server's cache is empty: the version we know of is gone.
        restart(plane.apiserver)
        wait_for(lambda: fleet.client.get("/api/v1/namespaces/default"))
        assert fleet.review(owner="a") is False
        proxy.refuse(refuses=False)
        wait_for(lambda: fleet.review(owner="a", tier="b") is True)
        assert fleet.review(owner="a") is False
        assert fleet.processes() == before
    finally:
        fleet.stop()
        print(fleet.product.program.log.read_text()[-6000:])
