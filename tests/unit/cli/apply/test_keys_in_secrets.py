"""``apply --cluster`` reads public keys from Secrets of the cluster."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.image_rig import Contents, Repository, Signer, serving
from tests.images import manifest_rig
from tests.images.rig import Sigstore, pem_key
from tests.images.tuf_rig import TufRepository
from tests.unit.cli.conftest import Command
from tests.unit.kube.fake_api import FakeApi

NAMESPACE = "apps"
KEYS = {"secret": {"name": "cosign", "namespace": NAMESPACE}}
NO_LOG = {
    "url": "http://log.example",
    "insecureIgnoreTlog": True,
    "insecureIgnoreSCT": True,
}


class Rig:
    """A signed image, a Pod that runs it, and optionally a Secret with the key."""

    def __init__(self, host: str, contents: Contents, api: FakeApi) -> None:
        self.signer, self.api, self.host = Signer(), api, host
        self.contents = contents
        repository = Repository("app")
        repository.sign(repository.image(), self.signer)
        repository.load(contents)

    def secret(self, signer: Signer, namespace: str = NAMESPACE) -> None:
        pem = base64.b64encode(signer.pem.encode()).decode()
        path = f"/api/v1/namespaces/{namespace}/secrets/cosign"
        self.api.put(path, data={"cosign.pub": pem})

    def pod(self) -> None:
        containers = [{"name": "c", "image": f"{self.host}/app:v1"}]
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/web"
        self.api.put(path, metadata={}, spec={"containers": containers})

    def policy(self, keys: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        block = {
            "imageReferences": [f"{self.host}/*"],
            "attestors": [
                {"entries": [{"keys": {**keys, "rekor": {"ignoreTlog": True}}}]}
            ],
            "mutateDigest": False,
            "verifyDigest": False,
            "required": False,
        }
        return rule({"verifyImages": [block]}, "Pod", namespace)


def rule(body: dict[str, Any], kind: str, namespace: str = "") -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": [kind]}}]}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy" if namespace else "ClusterPolicy",
        "metadata": {"name": "signed"}
        | ({"namespace": namespace} if namespace else {}),
        "spec": {"background": False, "rules": [{"name": "r", "match": match, **body}]},
    }


@pytest.fixture
def rig(api: FakeApi) -> Iterator[Rig]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Rig(host, contents, api)


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Any:
    def call(policy: dict[str, Any], *flags: object) -> Any:
        file = tmp_path / "policy.yaml"
        file.write_text(yaml.safe_dump(policy))
        return command("apply", file, *flags, "--detailed-results")

    return call


@pytest.mark.parametrize("keys", [KEYS, {"publicKeys": f"k8s://{NAMESPACE}/cosign"}])
@pytest.mark.parametrize("flags", [(), ("--registry",)])
def test_key_of_a_rule(
    rig: Rig, run: Any, keys: dict[str, Any], flags: tuple[str, ...]
) -> None:
    rig.pod()
    rig.secret(rig.signer)
    done = run(rig.policy(keys), "--cluster", *flags)
    assert done.out.endswith("\npass: 1, fail: 0, warn: 0, error: 0, skip: 0 \n")
    rig.secret(Signer())
    done = run(rig.policy(keys), "--cluster", *flags)
    assert done.out.endswith("\npass: 0, fail: 1, warn: 0, error: 0, skip: 0 \n")
    rig.api.remove(f"/api/v1/namespaces/{NAMESPACE}/secrets/cosign")
    done = run(rig.policy(keys), "--cluster", *flags)
    reason = 'checking if secret exists: secrets "cosign" not found'
    assert f"k8s://{NAMESPACE}/cosign: {reason}" in done.out


def test_policy_of_another_namespace(rig: Rig, run: Any) -> None:
    rig.pod()
    rig.secret(rig.signer, "other")
    keys = {"publicKeys": "k8s://other/cosign"}
    done = run(rig.policy(keys, NAMESPACE), "--cluster")
    assert "can only refer to Secrets in its own namespace" in done.out
    assert not rig.api.count("/secrets/")
    done = run(rig.policy(keys), "--cluster")
    assert done.out.endswith("\npass: 1, fail: 0, warn: 0, error: 0, skip: 0 \n")


def test_key_of_an_image_validating_policy(rig: Rig, run: Any) -> None:
    rig.pod()
    rig.secret(rig.signer)
    sigstore = Sigstore()
    keys = {"rekor.pub": sigstore.rekor, "ctfe.pub": sigstore.ctlog}
    files = {name: pem_key(key).encode() for name, key in keys.items()}
    tuf = TufRepository(files, {"rekor.pub": "Rekor", "ctfe.pub": "CTFE"})
    for name, body in tuf.served.items():
        rig.contents.answers["GET", f"/tuf/{name}"] = (200, {}, body)
    root = {"data": base64.b64encode(tuf.root).decode()}
    pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    cosign = {
        "key": {"kms": f"k8s://{NAMESPACE}/cosign"},
        "ctlog": NO_LOG,
        "tuf": {"mirror": f"http://{rig.host}/tuf", "root": root},
    }
    signed = "images.containers.all(i, verifyImageSignatures(i, [attestors.us]) > 0)"
    policy = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ImageValidatingPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": [pods]},
            "attestors": [{"name": "us", "cosign": cosign}],
            "validations": [{"expression": signed}],
        },
    }
    done = run(policy, "--cluster")
    assert done.out.endswith("\npass: 1, fail: 0, warn: 0, error: 0, skip: 0 \n")
    rig.secret(Signer())
    done = run(policy, "--cluster")
    assert done.out.endswith("\npass: 0, fail: 1, warn: 0, error: 0, skip: 0 \n")


def test_key_of_a_signed_manifest(rig: Rig, run: Any) -> None:
    rig.secret(rig.signer)
    raw = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", "namespace": NAMESPACE},
        "data": {"a": "1"},
    }
    message = manifest_rig.of_objects(raw)
    signed = manifest_rig.annotated(raw, message, rig.signer.sign(message))
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/m"
    rig.api.put(path, metadata=signed["metadata"], data=signed["data"])
    manifests = {"attestors": [{"entries": [{"keys": KEYS}]}]}
    policy = rule({"validate": {"manifests": manifests}}, "ConfigMap")
    done = run(policy, "--cluster")
    assert done.out.endswith("\npass: 1, fail: 0, warn: 0, error: 0, skip: 0 \n")
    rig.secret(Signer())
    done = run(policy, "--cluster")
    assert done.out.endswith("\npass: 0, fail: 0, warn: 0, error: 1, skip: 0 \n")
