"""An envelope verifies only if a trusted chain signed this very image, and unchanged.

A failure means: an image counts as signed although its signature was changed, expired
or made by another signer.
"""

import base64
import dataclasses
import datetime as dt
import json
import os
import random
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID

from kyverno_mp import limits
from kyverno_mp.images.notation.envelope import check_envelope
from kyverno_mp.images.notation.records import Refused, Target
from tests.image_rig import OCI
from tests.images import notation_rig as rig

DIGEST = f"sha256:{'a' * 64}"
TARGET = Target(OCI, DIGEST, 417)
BODY = rig.payload(DIGEST, 417)
FORMS = (rig.JWS, rig.COSE)
_PREFIX = "io.cncf.notary"
_ALL = "KYVERNO_MP_TEST_ALL_MUTATIONS"
_SAMPLE = 1500


def reason(
    form: str, blob: bytes, *trusted: x509.Certificate, now: dt.datetime = rig.NOW
) -> str:
    try:
        check_envelope(form, blob, trusted, TARGET, now)
    except Refused as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def made() -> rig.Chain:
    return rig.chain()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["leaf", "intermediate", "root"])
def test_each_certificate_of_the_chain_can_be_trusted(
    made: rig.Chain, form: str, place: int
) -> None:
    blob = rig.ENVELOPES[form](made, BODY)
    assert not reason(form, blob, made.certificates[place])
    other = rig.chain().certificates[place]
    assert "does not contain any trusted" in reason(form, blob, other)
    assert "no trusted certificates" in reason(form, blob)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "key",
    [
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: rsa.generate_private_key(65537, 2048),
    ],
    ids=["p384", "rsa"],
)
def test_other_keys(form: str, key: Callable[[], rig.Key]) -> None:
    made = rig.chain(key())
    assert not reason(form, rig.ENVELOPES[form](made, BODY), made.root)


def test_a_single_self_signed_leaf(made: rig.Chain) -> None:
    leaf = rig.certificate(("one", made.key), ("one", made.key), is_ca=False)
    one = rig.Chain(made.key, [leaf])
    assert not reason(rig.JWS, rig.jws(one, BODY), leaf)
    assert "does not contain any" in reason(rig.JWS, rig.jws(one, BODY), made.root)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"cty": "text/plain"}, 'payload content type "text/plain" not supported'),
        ({"crit": ["nope"]}, "marked critical but not present"),
        ({"crit": None}, "crit"),
        ({f"{_PREFIX}.signingScheme": "other"}, "igningScheme: "),
        ({f"{_PREFIX}.signingTime": None}, "signing"),
        (
            {
                "crit": [f"{_PREFIX}.signingScheme", f"{_PREFIX}.verificationPlugin"],
                f"{_PREFIX}.verificationPlugin": "p",
            },
            "plugin unsupported",
        ),
    ],
)
def test_rejected_headers(
    made: rig.Chain, form: str, changed: dict[str, Any], text: str
) -> None:
    blob = rig.ENVELOPES[form](made, BODY, **changed)
    assert text in reason(form, blob, made.root)


def _moment(form: str, moment: dt.datetime) -> object:
    if form == rig.COSE:
        return cbor2.CBORTag(1, int(moment.timestamp()))
    return moment.isoformat()


@pytest.mark.parametrize("form", FORMS)
def test_expiry(made: rig.Chain, form: str) -> None:
    crit = [f"{_PREFIX}.signingScheme", f"{_PREFIX}.expiry"]

    def answer(expiry: dt.datetime, critical: list[str] = crit) -> str:
        headers = {f"{_PREFIX}.expiry": _moment(form, expiry), "crit": critical}
        return reason(form, rig.ENVELOPES[form](made, BODY, **headers), made.root)

    day = dt.timedelta(days=1)
    assert not answer(rig.NOW + day)
    assert (
        answer(rig.NOW)
        == 'digital signature has expired on "Thu, 01 Jan 2026 00:00:00 +0000"'
    )
    assert "before the signing time" in answer(rig.SIGNED)
    assert "not marked as critical" in answer(rig.NOW + day, crit[:1])


def test_time_without_its_tag_is_rejected(made: rig.Chain) -> None:
    headers = {f"{_PREFIX}.signingTime": int(rig.SIGNED.timestamp())}
    text = reason(rig.COSE, rig.cose(made, BODY, **headers), made.root)
    assert "invalid signingTime" in text


@pytest.mark.parametrize("form", FORMS)
def test_certificates_must_be_valid_now(made: rig.Chain, form: str) -> None:
    blob = rig.ENVELOPES[form](made, BODY)
    late = reason(form, blob, made.root, now=rig.END + dt.timedelta(seconds=1))
    assert 'validity period, it was expired at "Sat, 01 Jan 2050' in late
    early = reason(form, blob, made.root, now=rig.START - dt.timedelta(seconds=1))
    assert 'it will be valid from "Mon, 01 Jan 2024' in early


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rig.payload(f"sha256:{'b' * 64}", 417), "content descriptor mismatch"),
        (rig.payload(DIGEST, 418), "content descriptor mismatch"),
        (rig.payload(DIGEST, 417, "text/plain"), "content descriptor mismatch"),
        (b"[]", "content descriptor mismatch"),
        (b"x", "invalid character"),
        (b"", "content not present"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_signed_content_must_be_the_image(
    made: rig.Chain, form: str, body: bytes, text: str
) -> None:
    assert text in reason(form, rig.ENVELOPES[form](made, body), made.root)


def _access() -> x509.AuthorityInformationAccess:
    place = x509.UniformResourceIdentifier("http://ocsp.example")
    kind = AuthorityInformationAccessOID.OCSP
    return x509.AuthorityInformationAccess([x509.AccessDescription(kind, place)])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"without_usage": True}, "key usage extension must be present"),
        (
            {
                "extra": (
                    (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), True),
                )
            },
            "extended key usage must not contain ServerAuth eku",
        ),
        (
            {"extra": ((x509.BasicConstraints(ca=True, path_length=None), True),)},
            "the ca field must be set to false",
        ),
        # SAFETY: revocation is not checked, so such a certificate never passes.
        ({"extra": ((_access(), False),)}, "revocation status is unknown"),
        ({"end": rig.SIGNED}, 'was expired at "Wed, 01 Jan 2025'),
    ],
)
def test_leaf_certificate_rules(options: dict[str, Any], text: str) -> None:
    made = rig.chain(**options)
    assert text in reason(rig.JWS, rig.jws(made, BODY), made.root)


def test_weak_keys() -> None:
    made = rig.chain(rsa.generate_private_key(65537, 1024))
    text = reason(rig.JWS, rig.jws(made, BODY), made.root)
    assert "rsa key size 1024 bits is not supported" in text


def test_chain_must_be_contiguous(made: rig.Chain) -> None:
    other = rig.chain()
    foreign = [made.certificates[0], *other.certificates[1:]]
    blob = rig.jws(dataclasses.replace(made, certificates=foreign), BODY)
    assert 'is not issued by "CN=middle"' in reason(rig.JWS, blob, other.root)
    short = dataclasses.replace(made, certificates=made.certificates[:2])
    text = reason(rig.JWS, rig.jws(short, BODY), made.certificates[0])
    assert 'root certificate with subject "CN=middle" is invalid or not' in text


def test_bounds(made: rig.Chain) -> None:
    many = made.certificates[:1] * (limits.IMAGE_NOTARY_CERTIFICATES_MAX + 1)
    long = dataclasses.replace(made, certificates=many)
    for form in FORMS:
        text = reason(form, rig.ENVELOPES[form](long, BODY), made.root)
        assert f"more than {limits.IMAGE_NOTARY_CERTIFICATES_MAX} certificates" in text
        blob = b" " * (limits.IMAGE_ENVELOPE_BYTES_MAX + 1)
        assert str(limits.IMAGE_ENVELOPE_BYTES_MAX) in reason(form, blob, made.root)


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xd2\x80",
        b"\x81" * 1000,
        b"\xd2\x84\x40\xa0\x40\x40",
        b"\xd2\x84\x40\xa0\x40\x40\x00",
        b"\x9b\x00\x00\x00\x7f\xff\xff\xff\xff",
        b"\xd8\x23\x61(",
        b"\xd2\x9f\x40\xa0\x40\x40\xff",
        b"{}",
        b"[]",
        b'{"header": 1, "payload": 2, "protected": null}',
        b'{"header": {"x5c": [1]}}',
        b'{"header": {"x5c": ["AA=="]}}',
    ],
)
@pytest.mark.parametrize("form", [*FORMS, "text/plain"])
def test_garbage(form: str, blob: bytes, made: rig.Chain) -> None:
    assert reason(form, blob, made.root)


@pytest.mark.parametrize("form", FORMS)
def test_no_mutation_verifies(made: rig.Chain, form: str) -> None:
    """All bytes count: both envelopes are signed completely."""
    blob = rig.ENVELOPES[form](made, BODY)
    assert not reason(form, blob, made.root)
    places = [
        (at, to) for at in range(len(blob)) for to in range(256) if to != blob[at]
    ]
    if not os.environ.get(_ALL):
        places = random.Random(form).sample(places, _SAMPLE)
    for at, to in places:
        changed = bytearray(blob)
        changed[at] = to
        if form == rig.JWS and _same(bytes(changed), blob):
            continue
        assert reason(form, bytes(changed), made.root), (at, to)


def _same(changed: bytes, blob: bytes) -> bool:
    """Return whether the JSON texts differ only in formatting."""
    try:
        return bool(json.loads(changed) == json.loads(blob))
    except ValueError:
        return False


@pytest.mark.parametrize("form", FORMS)
def test_truncated_or_extended_envelope_is_rejected(made: rig.Chain, form: str) -> None:
    blob = rig.ENVELOPES[form](made, BODY)
    for size in range(0, len(blob), 7):
        assert reason(form, blob[:size], made.root)
    assert reason(form, blob + b"\x00", made.root)


def test_signature_encoding_must_be_canonical(made: rig.Chain) -> None:
    """Unused bits of base64, padding and line ends create no second envelope."""
    envelope = json.loads(rig.jws(made, BODY))
    for name in ("protected", "payload", "signature"):
        for spelled in (envelope[name] + "=", envelope[name] + "\n"):
            text = reason(
                rig.JWS, json.dumps({**envelope, name: spelled}).encode(), made.root
            )
            assert text
    envelope["header"]["x5c"][0] = _respelled(envelope["header"]["x5c"][0])
    assert "malformed" in reason(rig.JWS, json.dumps(envelope).encode(), made.root)
    envelope = json.loads(rig.jws(made, BODY))
    last = envelope["signature"][-1]
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = envelope["signature"][:-1] + digits[digits.index(last) ^ 1]
    data = [
        base64.urlsafe_b64decode(one + "==") for one in (envelope["signature"], other)
    ]
    assert data[0] == data[1]
    changed = json.dumps({**envelope, "signature": other}).encode()
    assert "illegal base64" in reason(rig.JWS, changed, made.root)


def _respelled(text: str) -> str:
    return f"{text[:10]}\n{text[10:]}"
