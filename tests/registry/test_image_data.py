"""Rules read images of a real registry when --registry allows it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kyverno_mp.cli.cluster.registry_access import (
    RegistryImages,
    docker_client,
    soon_ns,
)
from kyverno_mp.errors import ExpressionFailed, RegistryUnavailable
from kyverno_mp.registry.client import OCI_INDEX, OCI_MANIFEST, digest_of
from kyverno_mp.registry.reference import parse_reference
from kyverno_mp.values.jsonvalue import Json
from tests.registry.conftest import Cli, Registry

CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"User": "1000", "Labels": {"team": "blue"}},
    "rootfs": {"type": "layers", "diff_ids": []},
}
POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: no-root}
spec:
  rules:
  - name: user
    match: {any: [{resources: {kinds: [Pod]}}]}
    context:
    - name: user
      imageRegistry:
        reference: "{{ request.object.spec.containers[0].image }}"
        jmesPath: "configData.config.User || ''"
    validate:
      failureAction: Enforce
      message: "user is {{ user }}"
      deny: {conditions: {any: [{key: "{{ user }}", operator: Equals, value: ""}]}}
"""


def _descriptor(media_type: str, data: bytes, **more: Json) -> dict[str, Json]:
    digest = digest_of(data)
    return {"mediaType": media_type, "size": len(data), "digest": digest, **more}


Build = Callable[[str, dict[str, Json]], dict[str, Json]]


@pytest.fixture
def build(registry: Registry) -> Build:
    """Return a function that stores an image and returns its manifest."""
    client = docker_client()

    def store(name: str, config: dict[str, Json]) -> dict[str, Json]:
        reference = parse_reference(registry.image(name))
        data = json.dumps(config).encode()
        client.push_blob(reference, data, soon_ns())
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": _descriptor("application/vnd.oci.image.config.v1+json", data),
            "layers": [],
        }
        body = json.dumps(manifest).encode()
        client.push_manifest(reference, body, OCI_MANIFEST, soon_ns())
        return manifest

    return store


def test_data_of_one_image(registry: Registry, build: Build) -> None:
    manifest = build("team/app:v1", CONFIG)
    image = registry.image("team/app:v1")
    found = RegistryImages(docker_client()).image_data(image, 0)
    digest = digest_of(json.dumps(manifest).encode())
    assert found == {
        "image": image,
        "resolvedImage": f"{registry.host}/team/app@{digest}",
        "registry": registry.host,
        "repository": "team/app",
        "identifier": "v1",
        "manifestList": None,
        "manifest": manifest,
        "configData": CONFIG,
    }
    by_digest = f"{registry.host}/team/app@{digest}"
    found = RegistryImages(docker_client()).image_data(by_digest, 0)
    # KYVERNO: what follows the last colon before the digest counts as the tag.
    tag = by_digest.partition("@")[0].rpartition(":")[2]
    wanted = (f"{tag}@{digest}", by_digest)
    assert (found["identifier"], found["resolvedImage"]) == wanted


def test_linux_amd64_is_selected(registry: Registry, build: Build) -> None:
    arm = build("multi:arm", {**CONFIG, "architecture": "arm64"})
    intel = build("multi:intel", CONFIG)
    index = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [
            _descriptor(
                OCI_MANIFEST,
                json.dumps(manifest).encode(),
                platform={"os": "linux", "architecture": architecture},
            )
            for manifest, architecture in ((arm, "arm64"), (intel, "amd64"))
        ],
    }
    body = json.dumps(index).encode()
    reference = parse_reference(registry.image("multi"))
    docker_client().push_manifest(reference, body, OCI_INDEX, soon_ns())
    found = RegistryImages(docker_client()).image_data(registry.image("multi"), 0)
    assert found["manifestList"] == index
    assert (found["manifest"], found["configData"]) == (intel, CONFIG)
    assert found["resolvedImage"].endswith(f"/multi@{digest_of(body)}")
    assert found["identifier"] == "latest"


def test_image_is_looked_up_once(registry: Registry, build: Build) -> None:
    """If a tag moves between two rules, both must still read the same image."""
    build("moving:v1", CONFIG)
    images = RegistryImages(docker_client())
    first = images.image_data(registry.image("moving:v1"), 0)
    build("moving:v1", {**CONFIG, "config": {"User": "0"}})
    assert images.image_data(registry.image("moving:v1"), 0) == first


def test_failures(registry: Registry) -> None:
    images = RegistryImages(docker_client())
    with pytest.raises(RegistryUnavailable, match="MANIFEST_UNKNOWN"):
        images.image_data(registry.image("absent"), 0)
    with pytest.raises(ExpressionFailed, match="could not parse reference"):
        images.image_data("A B", 0)


@pytest.mark.parametrize(("user", "code"), [("1000", 0), ("", 1)])
def test_apply_with_registry(
    cli: Cli, registry: Registry, build: Build, tmp_path: Path, user: str, code: int
) -> None:
    name = f"applied:u{user}"
    build(name, {**CONFIG, "config": {"User": user}})
    policy, pod = tmp_path / "policy.yaml", tmp_path / "pod.yaml"
    policy.write_text(POLICY)
    pod.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
        f"spec: {{containers: [{{name: c, image: '{registry.image(name)}'}}]}}\n"
    )
    done = cli("apply", policy, "-r", pod, "--registry")
    assert done.code == code
    assert f"pass: {1 - code}, fail: {code}, warn: 0, error: 0, skip: 0" in done.out
