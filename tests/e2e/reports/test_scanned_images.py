"""Scans verify the images of existing Pods, in a real registry, as their own account.

A failure means: a report does not say what a scan of images found, a key in a Secret
cannot be used in a cluster, or a registry that gives no answer holds up other rows.
"""

import base64
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import Product, holder_of, started
from tests.e2e.reports.test_reports import REPORTS, Space
from tests.image_rig import Repository, Signer
from tests.registry.conftest import Registry, serving
from tests.waiting import far_ns, unique, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

DEAD: Final = 4
_POLICIES: Final = "/apis/kyverno.io/v1/clusterpolicies"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_SETTINGS: Final = {
    "REPORTS_WORKERS": "1",
    "POD_NAME": "first",
    # The registry of these tests is on a loopback address.
    "REGISTRY_ALLOWLIST": "*,127.0.0.0/8",
}
_CREATED: Final = 201
_FAILURE_S: Final = 1.5
Json = Any


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serving(tmp_path_factory.mktemp("registry"), {}, "http") as found:
        yield found


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane,
    registry: Registry,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Product]:
    del registry  # without one there is nothing to start
    with started(shared_plane, tmp_path_factory.mktemp("images"), _SETTINGS) as product:
        yield product


class Images(Space):
    """One namespace with Pods, and the images that they run."""

    def __init__(self, api: Api, name: str, host: str) -> None:
        super().__init__(api, name)
        self.host = host
        self.signer = Signer()
        client = Client(lambda _host: Credentials(), user_agent="test")
        for kind in ("signed", "bare"):
            repository = Repository(f"{name}/{kind}")
            digest = repository.image(salt=kind)
            if kind == "signed":
                repository.sign(digest, self.signer)
            repository.push(client, host, far_ns())

    def image(self, kind: str) -> str:
        return f"{self.host}/{self.name}/{kind}:v1"

    def pod(self, name: str, image: str) -> Json:
        """Create a Pod; the namespace's account comes a moment after the namespace."""
        raw = {
            "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "c", "image": image}],
                "automountServiceAccountToken": False,
            },
        }
        path = f"/api/v1/namespaces/{self.name}/pods"

        def created() -> Json | None:
            status, found = self.api.ask("POST", path, raw)
            return found if status == _CREATED else None

        return wait_for(created)

    def verifying(self, keys: Json, *hosts: str) -> Json:
        """Return a rule that verifies images of the hosts."""
        block = {
            "imageReferences": [f"{host}/*" for host in hosts or (self.host,)],
            "mutateDigest": False,
            "verifyDigest": False,
            "required": False,
            "attestors": [
                {"entries": [{"keys": {**keys, "rekor": {"ignoreTlog": True}}}]}
            ],
        }
        resources = {"kinds": ["Pod"], "namespaces": [self.name]}
        return {
            "name": "verify",
            "match": {"any": [{"resources": resources}]},
            "verifyImages": [block],
        }

    def grant_keys(self) -> None:
        """Let the account that scans read the Secret with the key."""
        where = f"{_RBAC}/namespaces/{self.name}"
        rule = {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["cosign"],
            "verbs": ["get"],
        }
        named = {"metadata": {"name": "keys"}}
        self.api.create(f"{where}/roles", {**named, "rules": [rule]})
        subject = {
            "kind": "ServiceAccount",
            "name": "kyverno-reports-controller",
            "namespace": "kyverno",
        }
        role = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": "keys",
        }
        binding = {**named, "roleRef": role, "subjects": [subject]}
        self.api.create(f"{where}/rolebindings", binding)

    def message(self, raw: Json) -> str:
        (row,) = (self.report(raw) or {}).get("results") or ({"message": ""},)
        return str(row["message"])


@pytest.fixture
def images(
    api: Api, shared_plane: ControlPlane, running: Product, registry: Registry
) -> Iterator[Images]:
    del running  # started before, so that its Lease is held
    wait_for(lambda: holder_of(api, REPORTS) == "first")
    name = f"images-{unique()}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield Images(api, name, registry.host)
    for one in api.get(_POLICIES)["items"]:
        api.delete(f"{_POLICIES}/{one['metadata']['name']}")
    end_namespace(api, shared_plane.etcd_url, name)


def test_existing_pods_with_signed_and_unsigned_images(images: Images) -> None:
    signed = images.pod("signed", images.image("signed"))
    bare = images.pod("bare", images.image("bare"))
    elsewhere = images.pod("elsewhere", "elsewhere.example/app:v1")
    path = images.policy(images.verifying({"publicKeys": images.signer.pem}))
    wait_for(lambda: images.rows(signed) == [("verify", "pass")])
    wait_for(lambda: images.rows(bare) == [("verify", "fail")])
    assert "no signatures found" in images.message(bare)
    assert images.report(elsewhere) is None
    # Another key in the policy: results with the previous key no longer count.
    images.api.patch(
        path, {"spec": {"rules": [images.verifying({"publicKeys": Signer().pem})]}}
    )
    wait_for(lambda: images.rows(signed) == [("verify", "fail")])


def test_key_from_a_secret(images: Images) -> None:
    """The account may read it if a Role says so, and no report has its content."""
    pem = images.signer.pem
    raw = {
        "metadata": {"name": "cosign"},
        "data": {
            "cosign.pub": base64.b64encode(pem.encode()).decode(),
            "cosign.key": base64.b64encode(b"private-words").decode(),
        },
    }
    images.api.create(f"/api/v1/namespaces/{images.name}/secrets", raw)
    signed = images.pod("signed", images.image("signed"))
    keys = {"secret": {"name": "cosign", "namespace": images.name}}
    path = images.policy(images.verifying(keys))
    wait_for(lambda: images.rows(signed) == [("verify", "fail")])
    text = images.message(signed)
    assert f"failed to load public key from k8s://{images.name}/cosign: " in text
    assert "is forbidden" in text
    assert "private-words" not in text
    images.grant_keys()
    # A failure to read a key counts for a second.
    time.sleep(_FAILURE_S)
    images.api.delete(path)
    wait_for(lambda: images.report(signed) is None)
    images.policy(images.verifying(keys))
    wait_for(lambda: images.rows(signed) == [("verify", "pass")])


def test_unresponsive_registries_delay_no_other_row(images: Images) -> None:
    """Each of several takes the connection, and says nothing."""
    with ExitStack() as stack:
        listening = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            for _ in range(DEAD)
        ]
        hosts = [f"127.0.0.1:{one.getsockname()[1]}" for one in listening]
        dead = [
            images.pod(f"dead{at}", f"{host}/app:v1") for at, host in enumerate(hosts)
        ]
        signed = images.pod("signed", images.image("signed"))
        images.policy(
            images.rule(kinds=("Pod",)),
            images.verifying({"publicKeys": images.signer.pem}, images.host, *hosts),
        )
        wait_for(lambda: all(("r", "fail") in images.rows(one) for one in dead))
        # A call to one of them ends after seconds, and three objects of a namespace are
        # verified at once: other rows have come before the last of these.
        assert any(images.rows(one) == [("r", "fail")] for one in dead)
        wait_for(lambda: sorted(images.rows(signed))[1:] == [("verify", "pass")])
        wait_for(lambda: any(("verify", "error") in images.rows(one) for one in dead))
