"""No field of an attestor is read and ignored: each changes what is required.

CVE-2025-29778 (GHSA-46mp-8w32-6g94): upstream read subjectRegExp and issuerRegExp, and
did not use them.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec
import pytest

from kyverno_mp.policy.fields.context import ImageRegistryCredentials
from kyverno_mp.policy.fields.image_verification import (
    Attestor,
    AttestorSet,
    CertificateAttestor,
    CTLog,
    ImageVerification,
    KeylessAttestor,
    Rekor,
    StaticKeyAttestor,
)
from kyverno_mp.program.images.attestors import BlockReader, verify_sets
from kyverno_mp.program.ports import ReviewedImages, SignatureQuery

KEYS: Final = {"keys": {"publicKeys": "a"}}
KMS: Final = {"keys": {"kms": "awskms://a"}}
CERTIFICATE: Final = {"certificates": {"cert": "a"}}
CHAIN: Final = {"certificates": {"certChain": "a"}}
KEYLESS: Final = {"keyless": {"issuer": "a"}}

_LOG: Final = {"url": "https://other.example", "pubkey": "k", "ignoreTlog": True}
_SCTS: Final = {"ignoreSCT": True, "pubkey": "k", "tsaCertChain": "t"}
_BLOCK: Final = {
    "type": "Notary",
    "annotations": {"a": "b"},
    "repository": "r",
    "cosignOCI11": True,
    "useCache": False,
    "roots": "r",
}
"""Fields of a block that change the query of each attestor."""
_OTHER_TESTS: Final = frozenset(
    {
        # tests/unit/webhook/images/test_images.py, test_image_records.py
        "failureAction",
        "mutateDigest",
        "verifyDigest",
        "required",
        "skipImageReferences",
        "imageReferences",
        # tests/unit/cli/apply/test_verify_images.py
        "attestations",
        "validate",
        # Below: attestors, imageRegistryCredentials and the deprecated fields.
        "attestors",
        "imageRegistryCredentials",
        "image",
        "key",
        "issuer",
        "subject",
        # KYVERNO: without effect, as upstream (docs/behaviour/images 1.4).
        "additionalExtensions",
    }
)


class Recording:
    """Notes what is asked; no image is signed by ``z``."""

    def __init__(self) -> None:
        self.asked: list[SignatureQuery] = []

    def verify(self, asked: SignatureQuery, _deadline_ns: int) -> str:
        self.asked.append(asked)
        return "sha256:0"


def asked_for(entry: Mapping[str, Any], **block: Any) -> SignatureQuery:
    """Return what one entry of a block requires."""
    given = {"attestors": [{"entries": [entry]}], **block}
    images = Recording()
    converted = msgspec.convert(given, ImageVerification).converted()
    reader = BlockReader(converted, cast("ReviewedImages", images), 0)
    assert not verify_sets(reader, "registry.example/app:v1")
    (found,) = images.asked
    return found


def _changes() -> Iterator[tuple[type, str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the record, the field, an entry, and the entry with this field."""
    for kind, entry in (("keys", KEYS), ("certificates", CERTIFICATE)):
        for name, value in _LOG.items():
            yield from _inside(Rekor, entry, kind, "rekor", name, value)
        for name, value in _SCTS.items():
            yield from _inside(CTLog, entry, kind, "ctlog", name, value)
    for name, value in _LOG.items():
        yield from _inside(Rekor, KEYLESS, "keyless", "rekor", name, value)
    for name, value in _SCTS.items():
        yield from _inside(CTLog, KEYLESS, "keyless", "ctlog", name, value)
    secret = {"name": "n", "namespace": "s"}
    for record, entry, kind, name, value in (
        (StaticKeyAttestor, KEYS, "keys", "publicKeys", "b"),
        (StaticKeyAttestor, KEYS, "keys", "signatureAlgorithm", "sha512"),
        (StaticKeyAttestor, KMS, "keys", "kms", "awskms://b"),
        (StaticKeyAttestor, KMS, "keys", "secret", secret),
        (StaticKeyAttestor, KEYS, "keys", "rekor", _LOG),
        (StaticKeyAttestor, KEYS, "keys", "ctlog", _SCTS),
        (CertificateAttestor, CERTIFICATE, "certificates", "cert", "b"),
        (CertificateAttestor, CHAIN, "certificates", "certChain", "b"),
        (CertificateAttestor, CERTIFICATE, "certificates", "rekor", _LOG),
        (CertificateAttestor, CERTIFICATE, "certificates", "ctlog", _SCTS),
        (KeylessAttestor, KEYLESS, "keyless", "issuer", "b"),
        (KeylessAttestor, KEYLESS, "keyless", "issuerRegExp", "b"),
        (KeylessAttestor, KEYLESS, "keyless", "subject", "b"),
        (KeylessAttestor, KEYLESS, "keyless", "subjectRegExp", "b"),
        (KeylessAttestor, KEYLESS, "keyless", "roots", "b"),
        (KeylessAttestor, KEYLESS, "keyless", "additionalExtensions", {"a": "b"}),
        (KeylessAttestor, KEYLESS, "keyless", "rekor", _LOG),
        (KeylessAttestor, KEYLESS, "keyless", "ctlog", _SCTS),
    ):
        changed: dict[str, Any] = copy.deepcopy(dict(entry))
        changed[kind] = {**changed[kind], name: value}
        yield record, name, entry, changed
    for name, value in (
        ("keys", KEYS["keys"]),
        ("certificates", CERTIFICATE["certificates"]),
        ("keyless", KEYLESS["keyless"]),
    ):
        yield Attestor, name, CHAIN, {name: value}
    nested = {"entries": [KEYLESS]}
    yield Attestor, "attestor", KEYS, {"attestor": nested}
    for name, other in (
        ("annotations", {"a": "b"}),
        ("repository", "r"),
        ("signatureAlgorithm", "sha512"),
    ):
        yield Attestor, name, CERTIFICATE, {**CERTIFICATE, name: other}


def _inside(
    record: type,
    entry: Mapping[str, Any],
    kind: str,
    part: str,
    name: str,
    value: Any,
) -> Iterator[tuple[type, str, Mapping[str, Any], Mapping[str, Any]]]:
    before, after = copy.deepcopy(dict(entry)), copy.deepcopy(dict(entry))
    before[kind] = {**before[kind], part: {}}
    after[kind] = {**after[kind], part: {name: value}}
    yield record, name, before, after


_CHANGES: Final = tuple(_changes())


@pytest.mark.parametrize(("record", "name", "entry", "changed"), _CHANGES)
def test_every_field_of_an_attestor_decides(
    record: type, name: str, entry: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert asked_for(entry) != asked_for(changed), (record.__name__, name)


def test_all_fields_of_attestors_are_here() -> None:
    for record in (
        Rekor,
        CTLog,
        StaticKeyAttestor,
        CertificateAttestor,
        KeylessAttestor,
        Attestor,
    ):
        tested = {name for one, name, *_ in _CHANGES if one is record}
        assert tested == _names(record), record.__name__


@pytest.mark.parametrize("name", sorted(_BLOCK))
def test_a_field_of_a_block_decides_for_each_attestor(name: str) -> None:
    assert asked_for(CERTIFICATE) != asked_for(CERTIFICATE, **{name: _BLOCK[name]})


def test_all_fields_of_blocks_are_here() -> None:
    assert _names(ImageVerification) == _OTHER_TESTS | set(_BLOCK)
    assert not _OTHER_TESTS & set(_BLOCK)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowInsecureRegistry", True),
        ("providers", ["default"]),
        ("secrets", ["s"]),
    ],
)
def test_credentials_of_a_block_decide(name: str, value: Any) -> None:
    given = {"imageRegistryCredentials": {name: value}}
    assert asked_for(KEYS).access != asked_for(KEYS, **given).access
    assert name in _names(ImageRegistryCredentials)


@pytest.mark.parametrize(
    "given",
    [
        {"key": "b"},
        {"issuer": "b"},
        {"issuer": "b", "subject": "c"},
        {"issuer": "b", "roots": "c"},
    ],
)
def test_deprecated_fields_are_an_attestor(given: dict[str, str]) -> None:
    converted = msgspec.convert(given, ImageVerification).converted()
    images = Recording()
    reader = BlockReader(converted, cast("ReviewedImages", images), 0)
    assert not verify_sets(reader, "registry.example/app:v1")
    (asked,) = images.asked
    assert asked.key == given.get("key", "")
    assert asked.identity.issuer == given.get("issuer", "")
    assert asked.identity.subject == given.get("subject", "")
    assert asked.roots == given.get("roots", "")


def test_a_set_has_two_fields() -> None:
    assert _names(AttestorSet) == {"count", "entries"}


def _names(record: type) -> set[str]:
    return {one.encode_name for one in msgspec.structs.fields(record)}
