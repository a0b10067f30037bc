"""Signed manifests on a real API server, which adds fields to each object.

A failure means: ``dryRun`` does not work with the permissions that the documentation
lists, works without them, or accepts an object that was changed.
"""

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import Product, started
from tests.image_rig import Signer
from tests.images import manifest_rig
from tests.waiting import unique, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_POLICIES: Final = "/apis/kyverno.io/v1/clusterpolicies"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_CREATED: Final = 201
Json = Any


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    with started(shared_plane, tmp_path_factory.mktemp("manifests"), {}) as product:
        yield product


class Manifests:
    """A namespace for signed Deployments, and one for their dry runs."""

    def __init__(self, api: Api, etcd_url: str) -> None:
        self.api, self.etcd_url = api, etcd_url
        stamp = unique()
        self.name, self.dry_runs = f"signed-{stamp}", f"dry-runs-{stamp}"
        self.signer = Signer()
        for name in (self.name, self.dry_runs):
            api.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def end(self) -> None:
        self.api.delete(f"{_POLICIES}/{self.name}")
        for name in (self.name, self.dry_runs):
            end_namespace(self.api, self.etcd_url, name)

    def require_signatures(self) -> None:
        keys = {"publicKeys": self.signer.pem}
        resources = {"kinds": ["Deployment"], "namespaces": [self.name]}
        rule = {
            "name": "signed",
            "match": {"any": [{"resources": resources}]},
            "validate": {
                "failureAction": "Enforce",
                "manifests": {
                    "dryRun": {"enable": True, "namespace": self.dry_runs},
                    "attestors": [{"entries": [{"keys": keys}]}],
                },
            },
        }
        raw = {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": self.name},
            "spec": {"background": False, "rules": [rule]},
        }
        self.api.create(_POLICIES, raw)

    def signed(self, name: str) -> Json:
        """Return a signed Deployment without the fields that have defaults."""
        labels = {"app": name}
        pod = {"containers": [{"name": "c", "image": "registry.example/app:v1"}]}
        raw = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
        return manifest_rig.signed(raw, self.signer)

    def create(self, raw: Json) -> str:
        """Create a Deployment; return the reason for a denial, "" if it is created."""
        path = f"/apis/apps/v1/namespaces/{self.name}/deployments"
        status, found = self.api.ask("POST", path, raw)
        # K8S: a denial is YAML with wrapped lines.
        return "" if status == _CREATED else " ".join(found["message"].split())

    def grant(self) -> None:
        """Let the admission controller create Deployments for dry runs."""
        where = f"{_RBAC}/namespaces/{self.dry_runs}"
        rule = {"apiGroups": ["apps"], "resources": ["deployments"]}
        named = {"metadata": {"name": "dry-runs"}}
        self.api.create(
            f"{where}/roles", {**named, "rules": [{**rule, "verbs": ["create"]}]}
        )
        subject = {
            "kind": "ServiceAccount",
            "name": "kyverno-admission-controller",
            "namespace": "kyverno",
        }
        role = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": "dry-runs",
        }
        binding = {**named, "roleRef": role, "subjects": [subject]}
        self.api.create(f"{where}/rolebindings", binding)


@pytest.fixture
def manifests(
    api: Api, shared_plane: ControlPlane, running: Product
) -> Iterator[Manifests]:
    del running
    made = Manifests(api, shared_plane.etcd_url)
    yield made
    made.end()


def test_defaults_of_the_api_server_are_no_change(manifests: Manifests) -> None:
    given = manifests.signed("web")
    unsigned = copy.deepcopy(given)
    unsigned["metadata"] = {"name": "unsigned"}
    manifests.require_signatures()
    wait_for(lambda: "message not found" in manifests.create(unsigned))
    # Without the permission, no dry run is made.
    assert '"key":"spec.replicas"' in manifests.create(given)
    manifests.grant()
    changed = copy.deepcopy(given)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "evil.example/app"
    changed["metadata"]["name"] = "changed"
    wait_for(lambda: not manifests.create(given))
    # Nothing of the dry run is stored.
    path = f"/apis/apps/v1/namespaces/{manifests.dry_runs}/deployments"
    assert not manifests.api.get(path)["items"]
    found = manifests.create(changed)
    assert "failed to verify signature. diff found" in found
    assert "evil.example/app" in found
    assert "spec.replicas" not in found
