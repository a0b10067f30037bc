"""A folder returns the same answers as a registry with the same content."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed, SettingInvalid
from kyverno_mp.images.artifacts import Artifacts, parsed
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import ANONYMOUS
from kyverno_mp.registry.layout import LayoutRegistry
from tests.image_rig import Repository, Signer, digest_of
from tests.layout_rig import write_layout

_LATER_NS = 2**62
_IMAGE = "ghcr.io/org/app"


def _artifacts(folder: Path) -> Artifacts:
    send = LayoutRegistry(folder)
    return Artifacts(Client(lambda _r: ANONYMOUS, user_agent="test", send=send))


def _signed() -> tuple[Repository, str]:
    repository = Repository("org/app")
    digest = repository.image()
    repository.sign(digest, Signer())
    return repository, digest


@pytest.mark.parametrize("prefix", ["", f"{_IMAGE}:", "docker.io/other:"])
def test_entries_by_tag_or_by_reference(tmp_path: Path, prefix: str) -> None:
    repository, digest = _signed()
    write_layout(tmp_path, repository, name=lambda tag: f"{prefix}{tag}")
    artifacts = _artifacts(tmp_path)
    if prefix.startswith("docker.io"):
        with pytest.raises(ExpressionFailed, match="MANIFEST_UNKNOWN"):
            artifacts.digest(f"{_IMAGE}:v1", _LATER_NS)
        return
    assert artifacts.digest(f"{_IMAGE}:v1", _LATER_NS) == digest
    layers = artifacts.signatures(parsed(_IMAGE), digest, "sig", _LATER_NS)
    assert [one.problem for one in layers] == [""]
    with pytest.raises(ExpressionFailed, match="manifest unknown"):
        artifacts.digest(f"{_IMAGE}:v2", _LATER_NS)


def test_signatures_as_cosign_saves_them(tmp_path: Path) -> None:
    """Entries have kinds instead of names."""
    repository, digest = _signed()
    kinds = {"v1": "image", f"{digest.replace(':', '-')}.sig": "sigs"}
    write_layout(
        tmp_path, repository, kind=lambda tag: f"dev.cosignproject.cosign/{kinds[tag]}"
    )
    artifacts = _artifacts(tmp_path)
    assert artifacts.signatures(parsed(_IMAGE), digest, "sig", _LATER_NS)
    other = digest_of(b"other")
    assert artifacts.signatures(parsed(_IMAGE), other, "sig", _LATER_NS) == []
    assert artifacts.signatures(parsed(_IMAGE), digest, "att", _LATER_NS) == []
    # The one image of the folder is any tag, but no list of referrers.
    assert artifacts.digest(f"{_IMAGE}:v7", _LATER_NS) == digest
    assert artifacts.referring(parsed(_IMAGE), digest, _LATER_NS) == []


@pytest.mark.parametrize("what", ["two", "named"])
def test_single_unnamed_image_matches_any_tag(tmp_path: Path, what: str) -> None:
    repository, _ = _signed()
    if what == "two":
        repository.image("v2", "two")
    kinds = {"v": "image", "s": "sigs"}
    write_layout(
        tmp_path,
        repository,
        kind=lambda tag: f"dev.cosignproject.cosign/{kinds[tag[0]]}",
    )
    if what == "named":
        index = json.loads((tmp_path / "index.json").read_text())
        name = {"org.opencontainers.image.ref.name": "docker.io/other:v1"}
        index["manifests"][0]["annotations"].update(name)
        (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ExpressionFailed, match="MANIFEST_UNKNOWN"):
        _artifacts(tmp_path).digest(f"{_IMAGE}:v7", _LATER_NS)


def test_referrers_are_found_by_their_subject(tmp_path: Path) -> None:
    repository, digest = _signed()
    manifest = {
        "schemaVersion": 2,
        "artifactType": "application/vnd.example",
        "subject": {"digest": digest},
    }
    repository.manifests.append(("", json.dumps(manifest).encode()))
    write_layout(tmp_path, repository)
    artifacts = _artifacts(tmp_path)
    found = artifacts.referring(parsed(_IMAGE), digest, _LATER_NS)
    assert [one["artifactType"] for one in found] == ["application/vnd.example"]
    assert artifacts.referring(parsed(_IMAGE), digest_of(b"o"), _LATER_NS) == []


def test_referrers_are_found_by_the_tag_of_older_registries(tmp_path: Path) -> None:
    repository, digest = _signed()
    index = {"manifests": [{"digest": digest_of(b"x"), "artifactType": "t"}]}
    tag = digest.replace(":", "-")
    repository.manifests.append((tag, json.dumps(index).encode()))
    write_layout(tmp_path, repository)
    found = _artifacts(tmp_path).referring(parsed(_IMAGE), digest, _LATER_NS)
    assert [one["artifactType"] for one in found] == ["t"]


def test_digests_are_verified(tmp_path: Path) -> None:
    repository, digest = _signed()
    write_layout(tmp_path, repository)
    (tmp_path / "blobs" / "sha256" / digest[7:]).write_bytes(b"{}")
    with pytest.raises(ExpressionFailed, match="has the digest"):
        _artifacts(tmp_path).document(parsed(_IMAGE), digest, _LATER_NS)


def test_oversized_content_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, _ = _signed()
    write_layout(tmp_path, repository)
    monkeypatch.setattr("kyverno_mp.images.artifacts.REGISTRY_MANIFEST_BYTES_MAX", 10)
    with pytest.raises(ExpressionFailed, match="larger than 10 bytes"):
        _artifacts(tmp_path).digest(f"{_IMAGE}:v1", _LATER_NS)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "index.json: No such file"),
        ({"index.json": "x"}, "is not JSON"),
        (
            {"index.json": {"manifests": [{}] * (limits.LAYOUT_ENTRIES_MAX + 1)}},
            "more than 1000 entries",
        ),
    ],
)
def test_invalid_layout_folder(
    tmp_path: Path, files: Mapping[str, object], reason: str
) -> None:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    with pytest.raises(SettingInvalid, match=reason):
        LayoutRegistry(tmp_path)
