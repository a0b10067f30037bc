"""An authorizer reads policies from images of a real registry.

A failure means: policies of an image are missing without anybody being told, so that
requests are allowed that they deny; or an image takes the leader's memory.
"""

import gzip
import io
import json
import signal
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kyverno_mp.cli.cluster.registry_access import docker_client, soon_ns
from kyverno_mp.errors import SettingInvalid
from kyverno_mp.leader.artifacts import Artifact
from kyverno_mp.leader.authorizer import artifacts_of
from kyverno_mp.process.serve import serve
from kyverno_mp.registry.client import OCI_MANIFEST, digest_of
from kyverno_mp.registry.reference import parse_reference
from kyverno_mp.registry.tree import POLICY_LAYER
from kyverno_mp.settings.settings import Settings
from tests.faults.authorizer import Authorizer, get, write_policy
from tests.registry.conftest import PASSWORD, USER, Cli, Registry
from tests.unit.webhook.authz.authorizers import wire
from tests.waiting import wait_for

TAR = "application/vnd.oci.image.layer.v1.tar"
TAR_GZIP = f"{TAR}+gzip"
EMPTY = "application/vnd.oci.empty.v1+json"
Layer = tuple[str, bytes]


def tar(*entries: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    """Return an archive of files, or of other entries as they are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in entries:
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str, kind: bytes = tarfile.SYMTYPE) -> tuple[str, tarfile.TarInfo]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, "a.yaml"
    return name, entry


def zipped(data: bytes) -> Layer:
    return TAR_GZIP, gzip.compress(data)


def push(image: str, layers: Sequence[Layer]) -> str:
    """Store an image; return its digest."""
    client, reference = docker_client(), parse_reference(image)
    blobs = [(EMPTY, b"{}"), *layers]
    for _, data in blobs:
        client.push_blob(reference, data, soon_ns())
    config, *rest = [
        {"mediaType": kind, "size": len(data), "digest": digest_of(data)}
        for kind, data in blobs
    ]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config,
            "layers": rest,
        }
    ).encode()
    client.push_manifest(reference, manifest, OCI_MANIFEST, soon_ns())
    return digest_of(manifest)


def artifact(image: str) -> Artifact:
    (source,) = artifacts_of(Settings(authz_sources=f"oci://{image}"), None)
    return source


def files_of(image: str) -> dict[str, bytes]:
    """Return the files that a first read finds, by path in the image."""
    source = artifact(image)
    source.read()
    changes = source.poll(0)
    assert (changes.problems, changes.unread, changes.removed) == ((), (), ())
    prefix = f"/oci/{image}/"
    return {
        name.removeprefix(prefix): content for name, content in changes.changed.items()
    }


@pytest.fixture(autouse=True)
def _docker(cli: Cli) -> None:
    """A configuration of docker for this test, empty until it logs in."""


def test_layers_lie_over_each_other(registry: Registry) -> None:
    image = registry.image("authz/layers:1")
    lower = tar(
        ("a.yaml", b"old"),
        ("sub/deep/b.yml", b"b"),
        ("gone/c.yaml", b"c"),
        ("gone/deeper/d.yaml", b"d"),
        ("opaque/e.yaml", b"e"),
        ("replaced/f.yaml", b"f"),
        ("README.md", b"text"),
        (".hidden/g.yaml", b"g"),
    )
    upper = tar(
        ("opaque/new.json", b"{}"),
        ("opaque/.wh..wh..opq", b""),
        (".wh.gone", b""),
        ("replaced", b"a file where a folder was"),
        ("./a.yaml", b"new"),
    )
    push(image, [zipped(lower), (TAR, upper)])
    assert files_of(image) == {
        "a.yaml": b"new",
        "opaque/new.json": b"{}",
        "sub/deep/b.yml": b"b",
    }


def test_layer_can_be_one_policy(registry: Registry) -> None:
    """The layers of ``oci push``."""
    image = registry.image("authz/single:1")
    push(image, [(POLICY_LAYER, b"kind: A"), (POLICY_LAYER, b"kind: B")])
    assert sorted(files_of(image).values()) == [b"kind: A", b"kind: B"]


def test_moved_tag_is_followed_and_a_digest_is_not(registry: Registry) -> None:
    image = registry.image("authz/moved:1")
    digest = push(image, [zipped(tar(("a.yaml", b"1"), ("b.yaml", b"1")))])
    pinned = f"{registry.image('authz/moved')}@{digest}"
    tag = artifact(image)
    tag.read()
    assert len(tag.poll(0).changed) == 2
    tag.read()
    assert not tag.poll(0)
    push(image, [zipped(tar(("a.yaml", b"2")))])
    tag.read()
    changes = tag.poll(0)
    assert changes.changed == {f"/oci/{image}/a.yaml": b"2"}
    assert changes.removed == (f"/oci/{image}/b.yaml",)
    assert files_of(pinned) == {"a.yaml": b"1", "b.yaml": b"1"}


def test_unread_image_is_told_and_the_last_one_stays(registry: Registry) -> None:
    image = registry.image("authz/late:1")
    source = artifact(image)
    source.read()
    changes = source.poll(0)
    assert changes.unread == (f"oci://{image}",)
    (problem,) = changes.problems
    assert problem.startswith(f"oci://{image}: ")
    push(image, [zipped(tar(("a.yaml", b"1")))])
    source.read()
    changes = source.poll(0)
    assert (changes.problems, changes.unread) == ((), ())
    assert len(changes.changed) == 1
    push(image, [zipped(tar(("a.yaml", b"2"), link("b.yaml")))])
    source.read()
    changes = source.poll(0)
    assert changes.problems == (f"oci://{image}: b.yaml: not a regular file",)
    assert not changes
    assert changes.unread == ()


DAMAGED = bytearray(tar(("a.yaml", b"1"), ("b.yaml", b"2")))
DAMAGED[1024] ^= 0xFF
WHOLE = gzip.compress(tar(("a.yaml", b"1")))


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ((TAR, tar(link("b.yaml"))), "b.yaml: not a regular file"),
        ((TAR, tar(link("b.yaml", tarfile.LNKTYPE))), "b.yaml: not a regular file"),
        ((TAR, tar(("../b.yaml", b""))), "a path with .."),
        ((TAR, tar(("a/" * 2100, b""))), "a path of more than 4096 letters"),
        # tarfile would end here without an error, and leave out what follows.
        ((TAR, bytes(DAMAGED)), "not a valid tar archive"),
        ((TAR, b"a: b\n" * 300), "not a valid tar archive"),
        ((TAR_GZIP, WHOLE[:-9]), "truncated"),
        ((TAR_GZIP, WHOLE[:12] + b"\xff" * 40), "not valid gzip"),
        ((TAR, b"\x28\xb5\x2f\xfd" + bytes(600)), "not a valid tar archive"),
        ((TAR_GZIP, gzip.compress(bytes(65 << 20))), "more than 67108864 bytes"),
        ((TAR_GZIP, gzip.compress(bytes(33 << 20)) * 2), "more than 67108864 bytes"),
    ],
)
def test_image_that_is_not_understood_is_refused(
    registry: Registry, layer: Layer, reason: str
) -> None:
    image = registry.image("authz/refused:1")
    push(image, [zipped(tar(("x.yaml", b"x"))), layer])
    source = artifact(image)
    source.read()
    changes = source.poll(0)
    (problem,) = changes.problems
    assert reason in problem
    assert changes.unread == (f"oci://{image}",)
    assert not changes


def test_credentials_of_docker_are_used(cli: Cli, password_registry: Registry) -> None:
    image = password_registry.image("authz/private:1")
    cli.log_in(password_registry.host, username=USER, password=PASSWORD)
    push(image, [zipped(tar(("a.yaml", b"1")))])
    assert files_of(image) == {"a.yaml": b"1"}
    cli.log_in(password_registry.host, username=USER, password="wrong")
    source = artifact(image)
    source.read()
    assert source.poll(0).unread == (f"oci://{image}",)


def test_thread_reads_and_wakes_the_leader(registry: Registry) -> None:
    image = registry.image("authz/thread:1")
    push(image, [zipped(tar(("a.yaml", b"1")))])
    source = artifact(image)
    woken: list[bool] = []
    source.on_change(lambda: woken.append(source.is_tried))
    source.start()
    wait_for(lambda: bool(woken))
    assert len(source.poll(0).changed) == 1
    assert woken[0]
    push(image, [zipped(tar(("a.yaml", b"2")))])
    source.poll(0, force=True)  # as SIGHUP does
    wait_for(lambda: bool(source.poll(0)))
    source.stop()


OTHERS = b"""\
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
---
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: other}
spec:
  evaluation: {mode: Envoy}
  validations: [{expression: "null"}]
"""


@pytest.mark.parametrize("content", [b"", b"{", OTHERS])
def test_image_without_a_policy_allows_nothing(
    registry: Registry, content: bytes
) -> None:
    """A wrong tag would allow every request."""
    image = registry.image("authz/without:1")
    push(image, [zipped(tar(("a.yaml", content)))])
    settings = Settings(authz_mode="http", authz_sources=f"oci://{image}")
    (source,) = artifacts_of(settings, None)
    source.read()
    changes = source.poll(0)
    assert changes.unread == (f"oci://{image}",)
    assert "no policy of mode HTTP in 1 YAML or JSON files" in changes.problems[0]
    push(image, [zipped(tar(("a.yaml", POLICY)))])
    source.read()
    assert [*source.poll(0).changed.values()] == [POLICY]
    push(image, [zipped(tar(("a.yaml", content)))])
    source.read()
    after = source.poll(0)
    assert after.problems == changes.problems
    assert (after.changed, after.removed, after.unread) == ({}, (), ())
    (source,) = artifacts_of(replace(settings, allow_empty=True), None)
    source.read()
    assert not source.poll(0).unread


def test_unknown_reference_ends_the_start(tmp_path: Path) -> None:
    settings = Settings(
        standalone=True,
        authz_mode="http",
        authz_sources="oci://UPPER/Case::",
        runtime_dir=str(tmp_path / "run"),
    )
    with pytest.raises(SettingInvalid, match="could not parse reference"):
        serve(settings)


POLICY = b"""\
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: closed}
spec:
  evaluation: {mode: HTTP}
  validations:
  - expression: >-
      object.attributes.path == "/closed" ? http.Denied("no").Response() : null
"""


def judge(service: Authorizer, path: str) -> int:
    return get(service.port, "/", method="POST", body=wire(path))[0]


def test_server_decides_by_an_image(registry: Registry, tmp_path: Path) -> None:
    """Before the image was ever read, nobody knows what its policies deny."""
    image = registry.image("authz/served:1")
    write_policy(tmp_path / "policies", "other", "HTTP", "null")
    source = ("--external-policy-source", f"oci://{image}", "--nested-request")
    # One worker: the answer of one says nothing of what another has loaded.
    service = Authorizer(tmp_path, "http", *source, workers=1)
    try:
        assert f"oci://{image}" in (tmp_path / "stdout").read_text()
        assert judge(service, "/open") == 500
        assert f"oci://{image}" in service.health("/policies")[1]
        push(image, [zipped(tar(("sub/closed.yaml", POLICY)))])
        service.process.send_signal(signal.SIGHUP)
        wait_for(lambda: judge(service, "/open") == 200)
        assert judge(service, "/closed") == 403
        # What cannot be understood changes nothing.
        push(image, [zipped(tar(("sub/closed.yaml", POLICY), link("b.yaml")))])
        service.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "not a regular file" in service.health("/policies")[1])
        assert [judge(service, path) for path in ("/open", "/closed")] == [200, 403]
    finally:
        service.close()
