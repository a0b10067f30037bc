"""A pod runs the roles in its settings, each pool with its account and lease.

A failure means: a role acts as the wrong account, takes a lease of another role, or a
fault in a pool affects the webhook.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane
from tests.e2e.etcd import sizes
from tests.e2e.fleet import connect, pod, policy, review_on
from tests.e2e.product import ADMISSION, CLEANUP, NAMESPACE, Product, holder_of
from tests.waiting import wait_for

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
POLICIES = "/apis/kyverno.io/v1/clusterpolicies"
WEBHOOKS = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    "?labelSelector=webhook.kyverno.io/managed-by=kyverno"
)
USER = f"system:serviceaccount:{NAMESPACE}"


@pytest.fixture(scope="module")
def has_definitions() -> bool:
    return True


@pytest.fixture(scope="module")
def own(plane: ControlPlane) -> Iterator[Api]:
    """Yield a separate control plane: leases and audit logs are global."""
    with Api(plane.access) as api:
        yield api


@contextlib.contextmanager
def running(product: Product) -> Iterator[Product]:
    product.start()
    try:
        yield product
    finally:
        product.stop()
        print(product.program.log.read_text()[-6000:])


def grant_config_maps(api: Api) -> None:
    """Let the cleanup account delete ConfigMaps, as users do."""
    raw = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": "e2e-cleanup",
            "labels": {"rbac.kyverno.io/aggregate-to-cleanup-controller": "true"},
        },
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "verbs": ["get", "list", "watch", "delete"],
            }
        ],
    }
    with contextlib.suppress(Refused):
        api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", raw)


def due_config_map(name: str, ttl: str = "1s") -> dict[str, Any]:
    labels = {"cleanup.kyverno.io/ttl": ttl}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
    }


def is_gone(api: Api, name: str) -> bool:
    return api.ask("GET", f"{CONFIG_MAPS}/{name}")[0] == 404


def test_roles_in_one_pod_use_separate_accounts(
    own: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    grant_config_maps(own)
    extra = {"CLEANUP_WORKERS": "1", "POD_NAME": "all-in-one"}
    product = Product(plane, tmp_path, extra=extra)
    plane.audit.mark()
    with running(product):
        wait_for(lambda: holder_of(own, CLEANUP) == "all-in-one")
        assert holder_of(own, "kyverno") == "all-in-one"
        own.create(CONFIG_MAPS, due_config_map("one-pod"))
        wait_for(lambda: is_gone(own, "one-pod"))
        assert product.health()["pools"] == [{"name": "cleanup", "holdsLease": True}]
    wait_for(lambda: holder_of(own, CLEANUP) == "")
    asked = plane.audit.asked(writes=True)
    deleted = [one for one in asked if one.name == "one-pod" and one.verb == "delete"]
    assert {(one.user, one.code) for one in deleted} == {(f"{USER}:{CLEANUP}", 200)}
    took = {
        one.user for one in asked if one.name == CLEANUP and "lease" in one.resource
    }
    assert took == {f"{USER}:{CLEANUP}"}
    tokens = [one for one in asked if one.resource == "serviceaccounts/token"]
    ours = [one for one in tokens if one.user == f"{USER}:{ADMISSION}"]
    assert {(one.name, one.code) for one in ours} == {(CLEANUP, 201)}
    assert len(ours) == 1, "one token serves for minutes"
    forbidden = [one for one in plane.audit.asked() if one.code == 403]
    assert forbidden == []


def test_pod_with_only_a_pool_does_not_affect_webhooks(
    own: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    """It has no webhook, certificate, lease `kyverno` or token of another account."""
    grant_config_maps(own)
    own.ask(
        "DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/kyverno"
    )
    before = len(own.get(WEBHOOKS)["items"])
    extra = {"CLEANUP_WORKERS": "1", "POD_NAME": "alone"}
    product = Product(plane, tmp_path, workers=0, extra=extra, account=CLEANUP)
    plane.audit.mark()
    with running(product):
        wait_for(lambda: holder_of(own, CLEANUP) == "alone")
        own.create(CONFIG_MAPS, due_config_map("alone"))
        wait_for(lambda: is_gone(own, "alone"))
        assert product.unready() == ""
        assert set(product.processes()) == {"leader", "cleanup", "health"}
        with pytest.raises(OSError, match=r"refused|reset"):
            connect(product.port).connect()
    assert holder_of(own, "kyverno") == ""
    assert len(own.get(WEBHOOKS)["items"]) == before
    asked = plane.audit.asked(f"{USER}:{CLEANUP}")
    assert {one.user for one in plane.audit.asked() if "kyverno-mp" in one.agent} == {
        f"{USER}:{CLEANUP}"
    }
    written = {
        one.resource for one in asked if one.verb not in ("get", "list", "watch")
    }
    assert written <= {
        "leases",
        "configmaps",
        "events",
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
    }
    assert [one for one in asked if one.code == 403] == []


def test_crash_loop_of_a_pool_does_not_affect_webhooks(
    own: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    """The pool's health fails and the next coordinator continues; reviews go on."""
    grant_config_maps(own)
    extra = {
        "CLEANUP_WORKERS": "1",
        "POD_NAME": "looping",
        "RESTART_DELAY_S_MAX": "1",
        "CRASH_LOOP_DEATHS": "3",
        "CRASH_LOOP_WINDOW_S": "20",
    }
    product = Product(plane, tmp_path, extra=extra)
    with running(product), contextlib.closing(connect(product.port)) as link:
        own.create(POLICIES, policy("needed", "team"))
        wait_for(lambda: not review_on(link, pod())["allowed"])
        workers = psutil.Process(product.processes()["webhook"]).children()
        for _ in range(3):
            wait_for(lambda: product.processes()["cleanup"])
            os.kill(product.processes()["cleanup"], signal.SIGKILL)
            assert not review_on(link, pod())["allowed"]
            assert product.unready() == ""
            time.sleep(0.3)
        wait_for(lambda: "cleanup is in a crash loop" in product.health()["reasons"])
        assert product.unready() == ""
        assert psutil.Process(product.processes()["webhook"]).children() == workers
        own.create(CONFIG_MAPS, due_config_map("after-kills"))
        wait_for(lambda: is_gone(own, "after-kills"))
        wait_for(lambda: product.health()["status"] == "ok")
    own.delete(f"{POLICIES}/needed")


def test_pool_without_a_token_is_reported_and_recovers(
    own: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    """The grant that lets the pod request tokens is removed and restored."""
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"
    name = "kyverno:admission-controller:pool-tokens"
    extra = {"CLEANUP_WORKERS": "1", "POD_NAME": "tokenless"}
    product = Product(plane, tmp_path, extra=extra)
    with running(product):
        wait_for(lambda: holder_of(own, CLEANUP) == "tokenless")
    binding = own.get(f"{role}/{name}")
    own.delete(f"{role}/{name}")
    # At its start the product applies the grants of deploy/, so only its program is
    # started.
    product.program.start()
    try:
        wait_for(product.is_ready)
        log = product.program.log
        said = f"no new token for ServiceAccount {CLEANUP}"
        wait_for(lambda: said in log.read_text())
        assert product.unready() == ""
        assert holder_of(own, CLEANUP) == ""
        del binding["metadata"]["resourceVersion"], binding["metadata"]["uid"]
        own.create(role, binding)
        wait_for(lambda: holder_of(own, CLEANUP) == "tokenless")
    finally:
        product.stop()


def test_api_server_binds_no_token_to_a_pod_of_another_account(own: Api) -> None:
    """This is why the tokens are short-lived instead (kube/tokens.py)."""
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    spec = {
        "serviceAccountName": ADMISSION,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "c",
                "image": "none",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    made = own.create(pods, {"metadata": {"name": "binder"}, "spec": spec})
    bound = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "binder",
        "uid": made["metadata"]["uid"],
    }
    asked = {"spec": {"expirationSeconds": 600, "boundObjectRef": bound}}
    assert own.ask("POST", f"{accounts}/{ADMISSION}/token", asked)[0] == 201
    status, answer = own.ask("POST", f"{accounts}/{CLEANUP}/token", asked)
    assert status == 400, answer
    short = {"spec": {"expirationSeconds": 599}}
    assert own.ask("POST", f"{accounts}/{CLEANUP}/token", short)[0] == 422
    own.ask("DELETE", f"{pods}/binder", {"gracePeriodSeconds": 0})


def test_etcd_object_size_is_reported(own: Api, plane: ControlPlane) -> None:
    own.create(
        CONFIG_MAPS, {"metadata": {"name": "sized"}, "data": {"a": "x" * 10_000}}
    )
    found = sizes(plane.etcd_url, "/registry/configmaps/default/sized")
    (size,) = found.values()
    assert 10_000 < size < 11_000
    own.delete(f"{CONFIG_MAPS}/sized")


def test_calls_are_counted_by_verb(own: Api, plane: ControlPlane) -> None:
    plane.audit.mark()
    own.create(CONFIG_MAPS, {"metadata": {"name": "counted"}})
    own.get(f"{CONFIG_MAPS}/counted")
    own.get(f"{CONFIG_MAPS}/counted")
    own.delete(f"{CONFIG_MAPS}/counted")
    found = plane.audit.verbs("admin")
    assert found["create", "configmaps"] == 1
    assert found["get", "configmaps"] == 2
    assert found["delete", "configmaps"] == 1
