"""Signatures and attestations are valid only for exactly the signed bytes."""

import base64
import contextlib
import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.cosign import (
    check_annotations,
    verified_payloads,
    verified_statements,
)
from kyverno_mp.images.keys import StaticKey, certificate_key, static_key
from kyverno_mp.images.sigstore.proof import SIGNATURE, Layer, Terms
from tests.image_rig import Signer, digest_of, envelope_for, payload_for

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DIGEST = digest_of(b"image")
STATEMENT = {
    "_type": "https://in-toto.io/Statement/v0.1",
    "predicateType": "https://example.com/review/v1",
    "subject": [{"name": "i", "digest": {"sha256": DIGEST[7:]}}],
    "predicate": {"author": "alice"},
}


def _layer(payload: bytes, signature: bytes, **annotations: str) -> Layer:
    text = base64.b64encode(signature).decode()
    return Layer(digest_of(payload), payload, {SIGNATURE: text, **annotations})


def _pem(key: Any) -> str:
    data: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data.decode()


def _terms(key: StaticKey) -> Terms:
    return Terms(now=NOW, key=key)


def _reason(run: Callable[[], object]) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        run()
    return caught.value.message


_EC = ec.generate_private_key(ec.SECP384R1())
_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_ED = ed25519.Ed25519PrivateKey.generate()
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), 32)


@pytest.mark.parametrize(
    ("key", "algorithm", "sign", "reason"),
    [
        (_EC, "sha256", lambda d: _EC.sign(d, ec.ECDSA(hashes.SHA256())), ""),
        (_EC, "sha384", lambda d: _EC.sign(d, ec.ECDSA(hashes.SHA384())), ""),
        (
            _EC,
            "sha256",
            lambda d: _EC.sign(d, ec.ECDSA(hashes.SHA384())),
            "invalid signature when validating ASN.1 encoded signature",
        ),
        (
            _RSA,
            "sha512",
            lambda d: _RSA.sign(d, padding.PKCS1v15(), hashes.SHA512()),
            "",
        ),
        (
            _RSA,
            "sha256",
            lambda d: _RSA.sign(d, _PSS, hashes.SHA256()),
            "crypto/rsa: verification error",
        ),
        (_ED, "sha256", _ED.sign, ""),
        (_ED, "sha256", lambda d: _ED.sign(d + b"x"), "failed to verify signature"),
    ],
)
def test_algorithms(
    key: Any, algorithm: str, sign: Callable[[bytes], bytes], reason: str
) -> None:
    payload = payload_for(DIGEST)
    layer = _layer(payload, sign(payload))

    def run() -> object:
        return verified_payloads(
            [layer], DIGEST, _terms(static_key(_pem(key), algorithm))
        )

    if reason:
        assert _reason(run) == f"no matching signatures: {reason}"
    else:
        assert run()


@pytest.mark.parametrize(
    ("text", "algorithm", "reason"),
    [
        (
            "junk",
            "sha256",
            (
                "failed to load public key from junk: open junk: references are not"
                " supported; give the key inline as PEM"
            ),
        ),
        (
            "awskms://key",
            "sha256",
            (
                "failed to load public key from awskms://key: open awskms://key: only"
                " the service reads keys of AWS KMS, with KYVERNO_MP_AWS_KMS; give the"
                " key inline as PEM"
            ),
        ),
        (
            "pkcs11:token=t;object=o",
            "sha256",
            (
                "failed to load public key from pkcs11:token=t;object=o: open"
                " pkcs11:token=t;object=o: this version has no provider for keys of a"
                " PKCS#11 token; give the key inline as PEM"
            ),
        ),
        (
            "k8s://keys/cosign",
            "sha256",
            (
                "failed to load public key from k8s://keys/cosign: there is no cluster"
                " to read the Secret from; give the key inline as PEM"
            ),
        ),
        (
            "nokms://key",
            "sha256",
            (
                "failed to load public key from nokms://key: loading URL: unrecognized"
                " scheme: nokms://"
            ),
        ),
        (
            "-----BEGIN PUBLIC KEY-----\n!!\n-----END PUBLIC KEY-----",
            "sha256",
            (
                "failed to load public key from PEM: pem to public key: PEM decoding"
                " failed"
            ),
        ),
        ("", "md5", "invalid signature algorithm provided md5"),
    ],
)
def test_invalid_keys(text: str, algorithm: str, reason: str) -> None:
    assert _reason(lambda: static_key(text, algorithm)) == reason


def test_key_reference_opens_no_file(tmp_path: Any) -> None:
    """Upstream reads any file that a policy's author names."""
    file = tmp_path / "cosign.pub"
    file.write_text(Signer().pem)
    assert "references are not supported" in _reason(
        lambda: static_key(str(file), "sha256")
    )


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        (
            payload_for(DIGEST.upper()),
            "invalid or missing digest in claim: " + DIGEST.upper(),
        ),
        (
            payload_for(digest_of(b"other")),
            "invalid or missing digest in claim: " + digest_of(b"other"),
        ),
        (b"[]", "the payload is not a JSON object"),
        (b"{}", "invalid or missing digest in claim: "),
    ],
)
def test_claims(signed: bytes, reason: str) -> None:
    signer = Signer()
    check = static_key(signer.pem, "sha256")
    layer = _layer(signed, signer.sign(signed))
    text = _reason(lambda: verified_payloads([layer], DIGEST, _terms(check)))
    assert text == f"no matching signatures: {reason}"


def test_one_valid_signature_suffices_and_none_does_not() -> None:
    signer, stranger = Signer(), Signer()
    payload = payload_for(DIGEST)
    good, bad = (_layer(payload, one.sign(payload)) for one in (signer, stranger))
    check = static_key(signer.pem, "sha256")
    assert len(verified_payloads([bad, good], DIGEST, _terms(check))) == 1
    assert "no matching" in _reason(
        lambda: verified_payloads([bad], DIGEST, _terms(check))
    )
    text = _reason(lambda: verified_payloads([], DIGEST, _terms(check)))
    assert text == "no signatures found"


@pytest.mark.parametrize(
    ("optional", "wanted", "holds"),
    [
        ({"env": "prod"}, {"env": "prod"}, True),
        ({"env": "prod", "a": "b"}, {"env": "prod"}, True),
        ({"env": "dev"}, {"env": "prod"}, False),
        ({"n": 1.0}, {"n": "1"}, False),
        (None, {"env": "prod"}, False),
        (None, {}, True),
    ],
)
def test_annotations(optional: Any, wanted: dict[str, str], holds: bool) -> None:  # noqa: FBT001 - a parameter
    def run() -> None:
        check_annotations([{"optional": optional}], wanted)

    if holds:
        run()
    else:
        assert _reason(run) == "no signature matched the required annotations"


def _certificate(key: ec.EllipticCurvePrivateKey, until: dt.datetime) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "signer")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - dt.timedelta(days=30))
        .not_valid_after(until)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def test_certificate_beside_a_valid_key_must_be_valid_now() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    payload = payload_for(DIGEST)
    signature = key.sign(payload, ec.ECDSA(hashes.SHA256()))
    # Only the key of the policy's certificate is used.
    expired = _certificate(key, NOW - dt.timedelta(days=1))
    check = certificate_key(expired, "sha256")
    assert verified_payloads([_layer(payload, signature)], DIGEST, _terms(check))
    name = "dev.sigstore.cosign/certificate"
    layer = _layer(payload, signature, **{name: expired})
    text = _reason(lambda: verified_payloads([layer], DIGEST, _terms(check)))
    assert "expected a signed timestamp to verify an expired certificate" in text
    valid = _certificate(key, NOW + dt.timedelta(days=1))
    layer = _layer(payload, signature, **{name: valid})
    assert verified_payloads([layer], DIGEST, _terms(check))


def _odd_certificates() -> list[str]:
    """Return copies of a certificate, each with one byte changed."""
    pem = _certificate(ec.generate_private_key(ec.SECP256R1()), NOW)
    der = x509.load_pem_x509_certificate(pem.encode()).public_bytes(
        serialization.Encoding.DER
    )
    odd = []
    for at in range(len(der)):
        for flip in (0x01, 0x06, 0x80):
            data = der[:at] + bytes([der[at] ^ flip]) + der[at + 1 :]
            body = base64.encodebytes(data).decode()
            odd.append(
                f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
            )
    return odd


def test_certificate_of_any_bytes_is_a_failure_without_a_crash() -> None:
    """Anyone who can push to a registry can set such an annotation."""
    signer = Signer()
    payload = payload_for(DIGEST)
    check = static_key(signer.pem, "sha256")
    name = "dev.sigstore.cosign/certificate"
    texts = set()
    for odd in _odd_certificates():
        layer = _layer(payload, signer.sign(payload), **{name: odd})
        try:
            verified_payloads([layer], DIGEST, _terms(check))
        except ExpressionFailed as error:
            texts.add(error.message)
        with contextlib.suppress(ExpressionFailed):
            certificate_key(odd, "sha256")
    assert any("is not a valid X509 version" in text for text in texts), texts


def test_no_mutation_of_a_signed_payload_verifies() -> None:
    signer = Signer()
    payload = payload_for(DIGEST, env="prod")
    signature = signer.sign(payload)
    check = static_key(signer.pem, "sha256")
    assert verified_payloads([_layer(payload, signature)], DIGEST, _terms(check))
    for data in _mutations(payload):
        layer = _layer(data, signature)
        with pytest.raises(ExpressionFailed, match="no matching"):
            verified_payloads([layer], DIGEST, _terms(check))


def test_no_mutation_of_a_signature_verifies() -> None:
    signer = Signer()
    payload = payload_for(DIGEST)
    signature = signer.sign(payload)
    check = static_key(signer.pem, "sha256")
    for data in _mutations(signature):
        layer = _layer(payload, data)
        with pytest.raises(ExpressionFailed, match="no matching"):
            verified_payloads([layer], DIGEST, _terms(check))


def test_no_mutation_of_an_envelope_changes_the_statement() -> None:
    signer = Signer()
    envelope = envelope_for(STATEMENT, signer)
    check = static_key(signer.pem, "sha256")
    stated = verified_statements([_layer(envelope, b"")], DIGEST, _terms(check))
    assert stated[0].content["predicate"] == {"author": "alice"}
    for data in _mutations(envelope):
        try:
            found = verified_statements([_layer(data, b"")], DIGEST, _terms(check))
        except ExpressionFailed:
            continue
        # Only an unsigned part was changed, e.g. the key's identifier.
        assert found == stated


def _mutations(data: bytes) -> list[bytes]:
    """Return the bytes with each bit flipped, and each byte removed or doubled."""
    made = []
    for at in range(len(data)):
        head, one, tail = data[:at], data[at], data[at + 1 :]
        made += [head + bytes([one ^ (1 << bit)]) + tail for bit in range(8)]
        made.append(head + tail)
        if tail:
            made.append(head + bytes([one, one]) + tail)
    return [each for each in made if each != data]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"subject": []}, "no matching subject digest found"),
        ({"predicate": [1]}, "could not parse predicate with type []interface {}"),
    ],
)
def test_statements(change: dict[str, Any], reason: str) -> None:
    signer = Signer()
    envelope = envelope_for({**STATEMENT, **change}, signer)
    check = static_key(signer.pem, "sha256")
    layer = _layer(envelope, b"")
    text = _reason(lambda: verified_statements([layer], DIGEST, _terms(check)))
    assert text == f"no matching attestations: {reason}"


_FEW = limits.IMAGE_ENVELOPE_SIGNATURES_MAX


@pytest.mark.parametrize(("others", "checked"), [(_FEW - 1, _FEW), (_FEW, 0)])
def test_signatures_of_an_envelope_are_bounded(others: int, checked: int) -> None:
    """Each signature is checked over the whole body, so their number costs time."""
    signer = Signer()
    raw = json.loads(envelope_for(STATEMENT, signer))
    bad = {"sig": base64.b64encode(b"bad").decode()}
    raw["signatures"] = [bad] * others + raw["signatures"]
    check, calls = static_key(signer.pem, "sha256"), []

    def counted(signature: bytes, data: bytes) -> str:
        calls.append(signature)
        return check.check(signature, data)

    layer = _layer(json.dumps(raw).encode(), b"")
    if checked:
        assert verified_statements([layer], DIGEST, _terms(StaticKey(counted, b"")))
    else:
        text = _reason(
            lambda: verified_statements(
                [layer], DIGEST, _terms(StaticKey(counted, b""))
            )
        )
        assert f"more than {_FEW} signatures" in text
    assert len(calls) == checked


def test_empty_signature_is_not_checked() -> None:
    raw = json.loads(envelope_for(STATEMENT, Signer()))
    raw["signatures"] = [{"sig": ""}, {}, 1]
    layer = _layer(json.dumps(raw).encode(), b"")
    calls: list[bytes] = []

    def check(signature: bytes, _data: bytes) -> str:
        calls.append(signature)
        return "bad"

    terms = _terms(StaticKey(check, b""))
    assert _reason(lambda: verified_statements([layer], DIGEST, terms))
    assert calls == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"signatures": []}, "no signature found"),
        (
            {"payloadType": "text/plain"},
            (
                "invalid payloadType text/plain on envelope. Expected"
                " application/vnd.in-toto+json"
            ),
        ),
    ],
)
def test_envelopes(change: dict[str, Any], reason: str) -> None:
    signer = Signer()
    raw = json.loads(envelope_for(STATEMENT, signer))
    layer = _layer(json.dumps({**raw, **change}).encode(), b"")
    check = static_key(signer.pem, "sha256")
    text = _reason(lambda: verified_statements([layer], DIGEST, _terms(check)))
    assert text == f"no matching attestations: {reason}"
