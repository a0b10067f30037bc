"""Make Notation signatures: certificate chains, JWS and COSE envelopes, referrers.

Gives: ``Chain`` (root, intermediate, leaf with their keys), ``jws``, ``cose``,
``refer``. Built with ``cryptography`` and ``cbor2`` only. May touch: nothing.
"""

import base64
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.image_rig import OCI, Contents, digest_of

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
END = dt.datetime(2050, 1, 1, tzinfo=dt.UTC)
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SIGNED = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
JWS, COSE = "application/jose+json", "application/cose"
PAYLOAD = "application/vnd.cncf.notary.payload.v1+json"
SIGNATURE = "application/vnd.cncf.notary.signature"
_PREFIX = "io.cncf.notary"
_COSE_NUMBERS = {"ES256": -7, "ES384": -35, "PS256": -37}


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def certificate(
    subject: tuple[str, Key],
    issuer: tuple[str, Key],
    *,
    is_ca: bool,
    extra: tuple[tuple[x509.ExtensionType, bool], ...] = (),
    without_usage: bool = False,
    end: dt.datetime = END,
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject[0]))
        .issuer_name(name(issuer[0]))
        .public_key(subject[1].public_key())
        .serial_number(7)
        .not_valid_before(START)
        .not_valid_after(end)
    )
    if is_ca:
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
    if not without_usage:
        builder = builder.add_extension(usage(sign=is_ca), critical=True)
    for value, critical in extra:
        builder = builder.add_extension(value, critical=critical)
    return builder.sign(issuer[1], hashes.SHA256())


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True)
class Chain:
    """A leaf and its issuers; ``certificates``: leaf first."""

    key: Key
    certificates: list[x509.Certificate]

    @property
    def ders(self) -> list[bytes]:
        return [one.public_bytes(Encoding.DER) for one in self.certificates]

    @property
    def root(self) -> x509.Certificate:
        return self.certificates[-1]

    @property
    def root_pem(self) -> str:
        return self.root.public_bytes(Encoding.PEM).decode()


def chain(leaf: Key | None = None, **of_leaf: Any) -> Chain:
    """Return leaf, intermediate and root; ``of_leaf``: the leaf's options."""
    top, middle, key = new_key(), new_key(), leaf or new_key()
    return Chain(
        key,
        [
            certificate(("leaf", key), ("middle", middle), is_ca=False, **of_leaf),
            certificate(("middle", middle), ("root", top), is_ca=True),
            certificate(("root", top), ("root", top), is_ca=True),
        ],
    )


def raw_signature(key: Key, data: bytes) -> bytes:
    """Sign as Notation does: r and s, or PSS."""
    if isinstance(key, rsa.RSAPrivateKey):
        scheme = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
        return key.sign(data, scheme, hashes.SHA256())
    size = (key.key_size + 7) // 8
    chosen = hashes.SHA384() if size == 48 else hashes.SHA256()
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(chosen)))
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def algorithm(key: Key) -> str:
    if isinstance(key, rsa.RSAPrivateKey):
        return "PS256"
    return "ES384" if key.key_size == 384 else "ES256"


def payload(digest: str, size: int, media_type: str = OCI) -> bytes:
    target = {"mediaType": media_type, "digest": digest, "size": size}
    return json.dumps({"targetArtifact": target}, separators=(",", ":")).encode()


def _plain(moment: dt.datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def jws(made: Chain, body: bytes, **changed: Any) -> bytes:
    """Return a JWS envelope; ``changed``: protected headers, None removes one."""
    headers: dict[str, Any] = {
        "alg": algorithm(made.key),
        "cty": PAYLOAD,
        "crit": [f"{_PREFIX}.signingScheme"],
        f"{_PREFIX}.signingScheme": "notary.x509",
        f"{_PREFIX}.signingTime": _plain(SIGNED),
    }
    headers = _changed(headers, changed)
    parts = [_base64url(json.dumps(headers).encode()), _base64url(body)]
    signature = raw_signature(made.key, ".".join(parts).encode())
    return json.dumps(
        {
            "payload": parts[1],
            "protected": parts[0],
            "header": {"x5c": [base64.b64encode(d).decode() for d in made.ders]},
            "signature": _base64url(signature),
        },
        separators=(",", ":"),
    ).encode()


def cose(made: Chain, body: bytes, **changed: Any) -> bytes:
    """Return a COSE envelope; ``changed``: protected headers, None removes one."""
    headers: dict[Any, Any] = {
        1: _COSE_NUMBERS[algorithm(made.key)],
        2: [f"{_PREFIX}.signingScheme"],
        3: PAYLOAD,
        f"{_PREFIX}.signingScheme": "notary.x509",
        f"{_PREFIX}.signingTime": cbor2.CBORTag(1, int(SIGNED.timestamp())),
    }
    labels: dict[str, Any] = {"alg": 1, "crit": 2, "cty": 3}
    renamed = {labels.get(key, key): value for key, value in changed.items()}
    protected = cbor2.dumps(_changed(headers, renamed))
    signed = cbor2.dumps(["Signature1", protected, b"", body])
    signature = raw_signature(made.key, signed)
    return cbor2.dumps(cbor2.CBORTag(18, [protected, {33: made.ders}, body, signature]))


def _changed(headers: dict[Any, Any], changed: Mapping[Any, Any]) -> dict[Any, Any]:
    kept = {**headers, **changed}
    return {key: value for key, value in kept.items() if value is not None}


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


ENVELOPES = {JWS: jws, COSE: cose}


def refer(
    contents: Contents,
    repository: str,
    subject: bytes,
    *referrers: tuple[str, str, bytes],
    about: bytes = b"",
) -> list[bytes]:
    """List referrers of a manifest under the fallback tag; return their manifests.

    A referrer: (artifactType, media type of its layer, layer). ``about``: the subject
    that they declare, if it is not ``subject``.
    """
    made, listed = [], []
    for kind, media_type, blob in referrers:
        contents.answers["GET", f"/v2/{repository}/blobs/{digest_of(blob)}"] = (
            200,
            {},
            blob,
        )
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": OCI,
                "artifactType": kind,
                "config": {"mediaType": "application/vnd.oci.empty.v1+json"},
                "layers": [
                    {
                        "mediaType": media_type,
                        "digest": digest_of(blob),
                        "size": len(blob),
                    }
                ],
                "subject": {"digest": digest_of(about or subject)},
            }
        ).encode()
        made.append(manifest)
        path = f"/v2/{repository}/manifests/{digest_of(manifest)}"
        contents.answers["GET", path] = (200, {"Content-Type": OCI}, manifest)
        listed.append({"artifactType": kind, "digest": digest_of(manifest)})
    index = json.dumps({"schemaVersion": 2, "manifests": listed}).encode()
    tag = digest_of(subject).replace(":", "-")
    kind = "application/vnd.oci.image.index.v1+json"
    path = f"/v2/{repository}/manifests/{tag}"
    contents.answers["GET", path] = (200, {"Content-Type": kind}, index)
    return made
