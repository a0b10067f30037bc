"""A review reads only needed data before its deadline, and caches it per access."""

import datetime as dt
from collections.abc import Iterator

import pytest

from kyverno_mp import limits
from kyverno_mp.errors import DeadlinePassed, ExpressionFailed
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.policy.fields.image_verification import (
    Attestor,
    AttestorSet,
    ImageVerification,
    Rekor,
    StaticKeyAttestor,
)
from kyverno_mp.program.images.attestors import BlockReader, verify_sets
from kyverno_mp.program.ports import LogTerms, RegistryAccess, SignatureQuery
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from tests.image_rig import Contents, Repository, Signer, digest_of, serving

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_LATER_NS = 2**62
_NO_LOG = LogTerms(is_ignored=True)


@pytest.fixture
def contents() -> Contents:
    return Contents()


@pytest.fixture
def host(contents: Contents) -> Iterator[str]:
    with serving(contents, is_canned=False) as found:
        yield found


def review(until_ns: int = _LATER_NS) -> ImageReview:
    """Return a review whose reads end later than its signature checks."""
    client = Client(lambda _registry: Credentials(), user_agent="test")
    return ImageReview(lambda _access: client, lambda: NOW, lambda _given: until_ns)


def test_a_provider_reads_the_key_that_a_reference_names(
    contents: Contents, host: str
) -> None:
    repository, signer = Repository("app"), Signer()
    digest = repository.image()
    repository.sign(digest, signer)
    repository.load(contents)
    read: list[tuple[str, str | None, int]] = []

    def provider(reference: str, tenant: str | None, deadline_ns: int) -> str:
        read.append((reference, tenant, deadline_ns))
        return signer.pem

    client = Client(lambda _registry: Credentials(), user_agent="test")
    one = ImageReview(
        lambda _access: client,
        lambda: NOW,
        lambda _given: _LATER_NS,
        providers={"mykms": provider},
    )
    asked = SignatureQuery(f"{host}/app:v1", key="mykms://key", logs=_NO_LOG)
    assert one.verify(asked, 0) == digest
    assert read == [("mykms://key", None, _LATER_NS)]
    one.verify(asked._replace(is_tenants=True, namespace="team"), 0)
    assert read[1:] == [("mykms://key", "team", _LATER_NS)]
    with pytest.raises(ExpressionFailed, match="unrecognized scheme: nokms://"):
        one.verify(asked._replace(key="nokms://key"), 0)


def test_digest_is_cached_per_access(contents: Contents, host: str) -> None:
    repository = Repository("app")
    first = repository.image()
    repository.load(contents)
    one = review()
    image = f"{host}/app:v1"
    assert one.digest(image, RegistryAccess(), 0) == first
    contents.answers["GET", "/v2/app/manifests/v1"] = (404, {}, b"")
    assert one.digest(image, RegistryAccess(), 0) == first
    with pytest.raises(ExpressionFailed):
        one.digest(image, RegistryAccess(secrets=("other",)), 0)


@pytest.mark.parametrize("kind", ["sig", "att"])
def test_no_signature_is_checked_after_the_deadline(
    contents: Contents, host: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, signer = Repository("app"), Signer()
    digest = repository.image()
    repository.sign(digest, signer)
    repository.attest(digest, signer, "t", {"a": 1})
    repository.load(contents)
    asked = SignatureQuery(f"{host}/app:v1", key=signer.pem, logs=_NO_LOG)
    one = review()
    assert one.verify(asked, 0) == digest
    monkeypatch.setattr(
        "kyverno_mp.images.verifier.monotonic_ns", lambda: _LATER_NS + 1
    )
    with pytest.raises(DeadlinePassed):
        one.verify(asked, 0) if kind == "sig" else one.statements(asked, 0)


def _signatures(contents: Contents, *layers: bytes) -> str:
    repository = Repository("app")
    digest = repository.image()
    repository.attach(digest, "sig", [(layer, "") for layer in layers])
    repository.load(contents)
    return digest


def _reason(host: str) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        review().verify(
            SignatureQuery(f"{host}/app:v1", key=Signer().pem, logs=_NO_LOG), 0
        )
    return caught.value.message


def test_failed_layers_count_the_received_bytes(contents: Contents, host: str) -> None:
    """The bytes of a wrong blob cost as much as the bytes of a right one."""
    layers = [b"%d" % i for i in range(3)]
    _signatures(contents, *layers)
    body = b" " * limits.REGISTRY_BLOB_BYTES_MAX
    for layer in layers:
        contents.answers["GET", f"/v2/app/blobs/{digest_of(layer)}"] = (200, {}, body)
    assert f"more than {limits.IMAGE_SIGNATURE_BYTES_MAX} bytes" in _reason(host)


def test_blob_used_by_many_layers_is_read_once(contents: Contents, host: str) -> None:
    _signatures(contents, b"{}", b"{}")
    path = ("GET", f"/v2/app/blobs/{digest_of(b'{}')}")
    contents.once[path] = contents.answers.pop(path)
    assert "blob unknown" not in _reason(host)


@pytest.mark.parametrize(
    "body",
    [
        b'{"errors": [{"code": "X", "message": "a\\u001b[31mb%s"}]}' % (b"y" * 5000),
        b"a\x1b[31mb" + b"y" * 5000,
    ],
)
def test_registry_texts_are_short_and_plain(
    contents: Contents, host: str, body: bytes
) -> None:
    contents.answers["GET", "/v2/app/manifests/v1"] = (418, {}, body)
    text = _reason(host)
    assert "a[31mb" in text
    assert len(text) < 1300


def test_count_above_the_entries_is_reported(contents: Contents, host: str) -> None:
    repository, signer = Repository("app"), Signer()
    repository.sign(repository.image(), signer)
    repository.load(contents)
    keys = StaticKeyAttestor(public_keys=signer.pem, rekor=Rekor(ignore_tlog=True))
    listed = AttestorSet(count=2, entries=(Attestor(keys=keys),))
    reader = BlockReader(ImageVerification(attestors=(listed,)), review(), 0)
    (failure,) = verify_sets(reader, f"{host}/app:v1")
    assert failure.text == ".attestors[0]: count 2 exceeds the 1 entries"
