"""docs/upgrade.md, "From Kyverno": its commands, as written there, and the way back.

A failure means: readers of the page get a cluster that admits forbidden objects, that
one of Kyverno's webhooks blocks, or that cannot be rolled back. The cluster has the
objects of Kyverno's chart and of Kyverno itself (kyverno_before.py); its pods are
stand-ins.
"""

import contextlib
import datetime as dt
import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from kyverno_mp.controllers.certificates.make import (
    certificate_pem,
    key_pem,
    make_ca,
    make_key,
    make_server,
)
from kyverno_mp.controllers.certificates.rules import CertificateRules
from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    DEPLOYMENT,
    NAMESPACE,
    Installation,
    installation,
    our_image,
    policy,
    until,
)
from tests.e2e.kyverno_before import (
    FILTERED,
    OTHERS,
    REGISTRY,
    Certificates,
    objects,
    webhook_configurations,
)
from tests.e2e.load import load
from tests.e2e.reader import Reader
from tests.waiting import unique

PAGE: Final = "upgrade.md"
STAND_IN: Final = Path(__file__).parents[1] / "kyverno_stand_in.py"
WEBHOOKS: Final = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KYVERNOS_RIGHT: Final = {
    "verb": "update",
    "group": "apps",
    "resource": "deployments",
    "subresource": "scale",
    "namespace": NAMESPACE,
}
OUR_RIGHT: Final = {
    "verb": "watch",
    "group": "apiextensions.k8s.io",
    "resource": "customresourcedefinitions",
}
pytestmark = pytest.mark.timeout(1800)


def certificates() -> Certificates:
    """Return certificates like those of Kyverno's certificate controller."""
    rules, now = CertificateRules(), dt.datetime.now(dt.UTC)
    authority_key, key = make_key("RSA"), make_key("RSA")
    authority = make_ca(authority_key, now, rules)
    server = make_server(key, authority, authority_key, now, rules)
    return Certificates(
        authority=certificate_pem(authority),
        authority_key=key_pem(authority_key),
        server=certificate_pem(server),
        server_key=key_pem(key),
    )


@pytest.fixture(scope="module")
def before(
    cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Yield a cluster in which Kyverno runs, with policies in force."""
    folder = tmp_path_factory.mktemp("stand-in")
    served = certificates()
    (folder / "tls.crt").write_bytes(served.server)
    (folder / "tls.key").write_bytes(served.server_key)

    def image(container: Mapping[str, Any]) -> Sequence[str]:
        name = container["image"]
        if name == f"{REGISTRY}/kyvernopre:v1.18.2":
            return ["/bin/true"]
        if name == f"{REGISTRY}/kyverno:v1.18.2":
            files = (str(folder / "tls.crt"), str(folder / "tls.key"))
            return [sys.executable, str(STAND_IN), *files]
        if name.startswith(REGISTRY):
            return ["/bin/sleep", "infinity"]
        assert name == "registry.example.com/kyverno-mp:0.1.0", name
        return our_image(container)

    with installation(plane, cluster.kubectl, image) as made:
        _create(made, [*objects(served)])
        _create(made, _policies())
        made.await_rollout()
        _create(made, [*webhook_configurations(served.authority)])
        until(lambda: _is_denied(made), "Kyverno denies")
        yield made


@pytest.fixture(scope="module")
def reader(
    cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Reader:
    return Reader(plane, cluster.kubectl, tmp_path_factory.mktemp("checkout"))


def _create(found: Installation, documents: Sequence[Any]) -> None:
    listing = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
    found.kubectl("create", "-f", "-", text=json.dumps(listing))
    found.kubectl("wait", "--for=condition=Established", "crd", "--all")


def _policies() -> list[Any]:
    """Return live policies of each kind that admission evaluates."""
    stamp = {
        "name": "stamp",
        "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
        "mutate": {
            "patchStrategicMerge": {"metadata": {"labels": {"stamped": "true"}}}
        },
    }
    mutating = {**policy("stamped", "", "Secret"), "spec": {"rules": [stamp]}}
    namespaced = policy("owned", "owner", "ServiceAccount")
    namespaced["kind"] = "Policy"
    namespaced["metadata"]["namespace"] = "default"
    return [policy("labelled", "team", "ConfigMap"), mutating, namespaced, _pinned()]


def _pinned() -> Any:
    """Return an ImageValidatingPolicy whose webhooks are called for each ConfigMap."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"],
    }
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ImageValidatingPolicy",
        "metadata": {"name": "pinned"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "attestors": [{"name": "n", "notary": {"certs": {"value": "c"}}}],
            "validations": [{"expression": "true"}],
        },
    }


class _Rights:
    """A right of one program's pods: it must last until the last of them has ended."""

    def __init__(
        self, plane: ControlPlane, found: Installation, image: str, right: Any
    ) -> None:
        self._plane, self._found, self._image = plane, found, image
        user = f"system:serviceaccount:{NAMESPACE}:{DEPLOYMENT}"
        self._asked = {"spec": {"user": user, "resourceAttributes": right}}
        self._stopping = threading.Event()
        self.kept = 0
        self.lost: list[Any] = []

    def _running(self) -> set[str]:
        return {
            pod.name
            for pod in self._found.pods
            if pod.raw["spec"]["containers"][0]["image"] == self._image
        }

    def _watch(self) -> None:
        with Api(self._plane.access) as api:
            while not self._stopping.is_set():
                before = self._running()
                _, answer = api.ask("POST", ACCESS_REVIEWS, self._asked)
                if answer["status"]["allowed"]:
                    self.kept += bool(before)
                elif before & self._running():
                    self.lost.append(answer["status"])

    @contextlib.contextmanager
    def kept_until_the_end(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, name="rights")
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()
        assert self.kept
        assert not self.lost


def _is_denied(found: Installation) -> bool:
    name = f"probe-{unique()}"
    made = found.run("create", "configmap", name)
    if made.returncode == 0:
        found.kubectl("delete", "configmap", name)
    return "is needed" in made.stderr


def _read(found: Installation, *words: str) -> Any:
    return json.loads(found.kubectl("get", *words, "-o", "json"))


def _deployment(found: Installation) -> Any:
    return _read(found, "-n", NAMESPACE, "deployment", DEPLOYMENT)["spec"]


def _authority(found: Installation) -> Any:
    name = "kyverno-svc.kyverno.svc.kyverno-tls-ca"
    return _read(found, "-n", NAMESPACE, "secret", name)["data"]


def _hooks(found: Installation) -> dict[str, Any]:
    """Return the webhooks of each registered configuration."""
    listing = _read(found, WEBHOOKS)["items"]
    return {one["metadata"]["name"]: one.get("webhooks", []) for one in listing}


def _services(found: Installation) -> set[str]:
    """Return the Services that the API server calls."""
    hooks = [hook for some in _hooks(found).values() for hook in some]
    return {hook["clientConfig"]["service"]["name"] for hook in hooks}


def _await_only(found: Installation, image: str) -> None:
    """Wait until all pods of the admission controller run an image."""

    def is_so() -> bool:
        pods = [pod for pod in found.pods if pod.name.startswith(DEPLOYMENT)]
        return bool(pods) and all(
            pod.raw["spec"]["containers"][0]["image"] == image for pod in pods
        )

    until(is_so, f"only {image} is left")


def _revision(found: Installation) -> int:
    made = _read(found, "-n", NAMESPACE, "deployment", DEPLOYMENT)
    return int(made["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def _copied_rights(found: Installation) -> list[str]:
    kinds = "clusterroles,clusterrolebindings,roles,rolebindings"
    names = found.kubectl("-n", NAMESPACE, "get", kinds, "-o", "name").split()
    return [name for name in names if "/before:" in name]


OURS: Final = "registry.example.com/kyverno-mp:0.1.0"


def test_kyverno_is_replaced_under_load(
    before: Installation, reader: Reader, plane: ControlPlane
) -> None:
    """Meanwhile no forbidden object is admitted and no allowed one is rejected."""
    authority = _authority(before)
    told = reader.follow(PAGE, "### 1. Check the policies")
    assert all(name in told for name in ("labelled", "stamped", "owned", "pinned"))
    reader.follow(PAGE, "### 2. Save what will change")
    reader.follow(PAGE, "### 3. Make Helm forget its release")
    rights = _Rights(plane, before, f"{REGISTRY}/kyverno:v1.18.2", KYVERNOS_RIGHT)
    with load(plane), rights.kept_until_the_end():
        reader.follow(PAGE, "### 4. Install over Kyverno")
        _await_only(before, OURS)
    assert _revision(before) == 2, "there was a single rollout"
    assert not _copied_rights(before)
    labels = ("-l", "owner=helm,name=kyverno")
    assert _read(before, "-n", NAMESPACE, "secret", *labels)["items"] == []
    assert _authority(before) == authority
    template = _deployment(before)["template"]["spec"]
    assert "initContainers" not in template
    (container,) = template["containers"]
    assert not [one for one in container["env"] if "_MP_" not in one["name"]]
    # Kyverno's own pods had an init container, ours none: no pod was of both.
    assert not [
        pod
        for pod in (plane.folder / "pods").glob(f"{DEPLOYMENT}-*")
        if (pod / "kyverno-pre.log").exists() and (pod / "volumes/runtime").exists()
    ]


def test_policies_are_enforced(before: Installation) -> None:
    """The existing policies, with the operator's own configuration."""
    assert _is_denied(before)
    before.kubectl("create", "configmap", FILTERED)
    before.kubectl("create", "secret", "generic", "seen")
    assert _read(before, "secret", "seen")["metadata"]["labels"] == {"stamped": "true"}
    made = before.run("create", "serviceaccount", "nobody")
    assert "label owner is needed" in made.stderr
    assert "cannot be used" not in before.logs()


def test_no_kyverno_webhook_remains(before: Installation) -> None:
    """Ours have the same names; unused webhooks are not registered."""
    until(lambda: _services(before) == {"kyverno-svc"}, "all webhooks are ours")
    hooks = _hooks(before)
    names = [one["name"] for one in hooks["kyverno-resource-validating-webhook-cfg"]]
    assert names == ["ivpol.validate.kyverno.svc-fail", "validate.kyverno.svc-fail"]
    left = _read(before, "-n", NAMESPACE, "deployments")["items"]
    assert [one["metadata"]["name"] for one in left] == [DEPLOYMENT]
    # We review clean-up policies, because we know the account's delete permissions.
    spec = {
        "schedule": "0 0 1 1 *",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
    }
    cleanup = {
        "apiVersion": "kyverno.io/v2",
        "kind": "ClusterCleanupPolicy",
        "metadata": {"name": "yearly"},
        "spec": spec,
    }
    made = before.run("create", "-f", "-", text=json.dumps(cleanup))
    assert "no permission to delete kind Pod" in made.stderr


def test_rollback_under_load(
    before: Installation, reader: Reader, plane: ControlPlane
) -> None:
    """Kyverno's pods, permissions, values and release are restored."""
    rights = _Rights(plane, before, OURS, OUR_RIGHT)
    with load(plane), rights.kept_until_the_end():
        reader.follow(PAGE, "### The way back")
        _await_only(before, f"{REGISTRY}/kyverno:v1.18.2")
    assert not _copied_rights(before)
    template = _deployment(before)["template"]["spec"]
    assert [one["name"] for one in template["initContainers"]] == ["kyverno-pre"]
    assert {one["name"] for one in template["volumes"]} == {"sigstore"}
    core = _read(before, "clusterrole", "kyverno:admission-controller:core")
    assert any(
        "kyverno.io" in one["apiGroups"] and "*" in one["resources"]
        for one in core["rules"]
    )
    left = _read(before, "-n", NAMESPACE, "deployments")["items"]
    names = {one["metadata"]["name"] for one in left}
    assert names == {DEPLOYMENT, *(f"kyverno-{one}" for one in OTHERS)}
    release = "sh.helm.release.v1.kyverno.v1"
    assert _read(before, "-n", NAMESPACE, "secret", release)["data"]
    budget = _read(before, "-n", NAMESPACE, "poddisruptionbudget", DEPLOYMENT)
    assert budget["spec"]["minAvailable"] == 1
    gone = ("priorityclass", "networkpolicy")
    for kind in gone:
        found = before.run("-n", NAMESPACE, "get", kind, DEPLOYMENT)
        assert "NotFound" in found.stderr, kind
    assert _is_denied(before)
