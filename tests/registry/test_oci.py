"""Policies go to a real registry and come back unchanged, with each login method."""

import json
import stat
import urllib.request
from pathlib import Path

import pytest
import yaml

from kyverno_mp.cli.cluster.registry_access import docker_client, soon_ns
from kyverno_mp.registry.client import digest_of
from kyverno_mp.registry.reference import parse_reference
from tests.registry.conftest import PASSWORD, USER, Cli, Registry
from tests.waiting import HANG_S

POLICIES = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: no-latest}
spec:
  rules:
  - name: tagged
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate:
      failureAction: Enforce
      message: A tag is required.
      pattern: {spec: {containers: [{image: "!*:latest"}]}}
---
apiVersion: kyverno.io/v1
kind: Policy
metadata: {name: labelled, namespace: apps}
spec:
  rules:
  - name: team
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate:
      message: A team is required.
      pattern: {metadata: {labels: {team: "?*"}}}
"""
CONFIG_TYPE = "application/vnd.cncf.kyverno.config.v1+json"
LAYER_TYPE = "application/vnd.cncf.kyverno.policy.layer.v1+yaml"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    file = tmp_path / "policies.yaml"
    file.write_text(POLICIES)
    return file


def test_round_trip(
    cli: Cli, registry: Registry, policies: Path, tmp_path: Path
) -> None:
    image = registry.image("team/policies:v1")
    pushed = cli("oci", "push", policies, "-i", image)
    assert (pushed.code, pushed.out) == (0, "")
    assert pushed.err == (
        "Adding cluster policy [no-latest]\n"
        "Adding policy [labelled]\n"
        f"Uploading [{image}]...\n"
        "Done."
    )
    folder = tmp_path / "new" / "folder"
    pulled = cli("oci", "pull", folder, "-i", image)
    assert (pulled.code, pulled.out) == (0, "")
    assert pulled.err == (
        f"Downloading policies from an image [{image}]...\n"
        f"Saving policy into disk [{folder}/no-latest.yaml]...\n"
        f"Saving policy into disk [{folder}/labelled.yaml]...\n"
        "Done."
    )
    expected = {raw["metadata"]["name"]: raw for raw in yaml.safe_load_all(POLICIES)}
    found = {file.stem: yaml.safe_load(file.read_text()) for file in folder.iterdir()}
    assert found == expected
    modes = {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert modes == {0o600}


def test_listing_equals_the_registrys_content(
    cli: Cli, registry: Registry, policies: Path
) -> None:
    cli("oci", "push", policies, "-i", registry.image("held:v1"))
    request = urllib.request.Request(
        f"http://{registry.host}/v2/held/manifests/v1",
        headers={"Accept": MANIFEST_TYPE},
    )
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        digest = answer.headers["Docker-Content-Digest"]
        manifest = json.load(answer)
    assert manifest["mediaType"] == MANIFEST_TYPE
    assert manifest["config"]["mediaType"] == CONFIG_TYPE
    assert [layer["mediaType"] for layer in manifest["layers"]] == [LAYER_TYPE] * 2
    assert [layer["annotations"] for layer in manifest["layers"]] == [
        {
            "io.kyverno.image.apiVersion": "kyverno.io/v1",
            "io.kyverno.image.kind": kind,
            "io.kyverno.image.name": name,
        }
        for kind, name in (("ClusterPolicy", "no-latest"), ("Policy", "labelled"))
    ]
    # Equal policies give equal bytes, so a second push changes nothing.
    again = registry.image(f"held@{digest}")
    assert cli("oci", "push", policies, "-i", again).code == 0


def test_pull_by_digest(
    cli: Cli, registry: Registry, policies: Path, tmp_path: Path
) -> None:
    image = registry.image("by-digest")
    assert cli("oci", "push", policies, "-i", image).code == 0
    request = urllib.request.Request(
        f"http://{registry.host}/v2/by-digest/manifests/latest",
        headers={"Accept": MANIFEST_TYPE},
        method="HEAD",
    )
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        digest = answer.headers["Docker-Content-Digest"]
    assert cli("oci", "pull", tmp_path / "out", "-i", f"{image}@{digest}").code == 0
    assert len(list((tmp_path / "out").iterdir())) == 2
    other = f"{image}@sha256:{'0' * 64}"
    assert cli("oci", "pull", tmp_path / "other", "-i", other).code == 3
    assert not (tmp_path / "other").exists()


def test_loopback_needs_no_tls_verification(
    cli: Cli, tls_registry: Registry, policies: Path, tmp_path: Path
) -> None:
    image = tls_registry.image("team/policies:v1")
    assert cli("oci", "push", policies, "-i", image).code == 0
    assert cli("oci", "pull", tmp_path / "out", "-i", image).code == 0


@pytest.mark.parametrize("kind", ["password_registry", "token_registry"])
def test_authorisation(
    cli: Cli, kind: str, request: pytest.FixtureRequest, policies: Path, tmp_path: Path
) -> None:
    guarded: Registry = request.getfixturevalue(kind)
    image = guarded.image("team/policies:v1")
    refused = cli("oci", "push", policies, "-i", image)
    assert refused.code == 3
    assert "401" in refused.err
    cli.log_in(guarded.host, username=USER, password="wr0ng-word")
    refused = cli("oci", "push", policies, "-i", image)
    assert refused.code == 3
    assert "wr0ng-word" not in refused.err
    cli.log_in(guarded.host, username=USER, password=PASSWORD)
    assert cli("oci", "push", policies, "-i", image).code == 0
    assert cli("oci", "pull", tmp_path / "out", "-i", image).code == 0
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_registry_errors(
    cli: Cli, registry: Registry, policies: Path, tmp_path: Path
) -> None:
    image = registry.image("refused:v1")
    assert "Error: image is required\n" in cli("oci", "push", policies).err
    assert "could not parse reference: A B" in cli("oci", "pull", "x", "-i", "A B").err
    missing = cli("oci", "pull", tmp_path / "out", "-i", image)
    assert (missing.code, "MANIFEST_UNKNOWN" in missing.err) == (3, True)
    assert "must be a directory" in cli("oci", "pull", policies, "-i", image).err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no policies found" in cli("oci", "push", empty, "-i", image).err
    policies.write_text(POLICIES.replace("kinds: [Pod]", "kinds: []"))
    invalid = cli("oci", "push", policies, "-i", image)
    assert (invalid.code, "validating policy no-latest: " in invalid.err) == (1, True)


def test_name_cannot_escape_the_folder(
    cli: Cli, registry: Registry, tmp_path: Path, policies: Path
) -> None:
    """A stranger's policy must not choose the folder it is written to."""
    image = registry.image("evil:v1")
    assert cli("oci", "push", policies, "-i", image).code == 0
    reference, client = parse_reference(image), docker_client()
    text = POLICIES.replace("no-latest", '"../outside"').encode()
    client.push_blob(reference, text, soon_ns())
    found = json.loads(client.manifest(reference, soon_ns()).body)
    found["layers"] = [
        {"mediaType": LAYER_TYPE, "size": len(text), "digest": digest_of(text)}
    ]
    client.push_manifest(
        reference, json.dumps(found).encode(), MANIFEST_TYPE, soon_ns()
    )
    done = cli("oci", "pull", tmp_path / "in", "-i", image)
    assert (done.code, "is not a valid policy name" in done.err) == (1, True)
    assert not (tmp_path / "outside.yaml").exists()
