"""A test Sigstore: certificate authority, transparency logs, timestamp authority.

Gives: Sigstore, whose ``layer`` creates signatures as Cosign attaches them. May touch:
nothing. All keys are generated here; names and times are fixed, so a failure is
reproducible.
"""

import base64
import datetime as dt
import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kyverno_mp.images.sigstore.logkeys import LogKeys, log_keys
from kyverno_mp.images.sigstore.proof import Layer
from tests.image_rig import IN_TOTO, digest_of, payload_for
from tests.images import asn1

NOW: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SIGNED: Final = NOW - dt.timedelta(days=100)
DIGEST: Final = digest_of(b"image")
ISSUER: Final = "https://issuer.example"
SUBJECT: Final = "me@example.com"
_SCTS: Final = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_FULCIO: Final = "1.3.6.1.4.1.57264.1"
_SHA256: Final = "2.16.840.1.101.3.4.2.1"
_YEAR: Final = dt.timedelta(days=365)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )


def pem_key(key: ec.EllipticCurvePrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def pem(*certificates: x509.Certificate) -> str:
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in certificates)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pem_of(data: bytes) -> str:
    """Return the bytes as a PEM certificate."""
    body = base64.encodebytes(data).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


@dataclass
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def issue(  # noqa: PLR0913 - what a test wants to be otherwise
    name: str,
    by: Issued | None = None,
    *,
    is_authority: bool = True,
    path_length: int | None = None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
    begin: dt.datetime = NOW - 2 * _YEAR,
    end: dt.datetime = NOW + 20 * _YEAR,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> Issued:
    """Issue a certificate; self-signed without ``by``."""
    key = key or new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(len(name) + 100)
        .not_valid_before(begin)
        .not_valid_after(end)
    )
    if is_authority:
        constraints = x509.BasicConstraints(ca=True, path_length=path_length)
        builder = builder.add_extension(constraints, critical=True)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return Issued(builder.sign(by.key if by else key, hashes.SHA256()), key)


def usage(*oids: x509.ObjectIdentifier, critical: bool = False) -> tuple[Any, bool]:
    return x509.ExtendedKeyUsage(oids or [ExtendedKeyUsageOID.CODE_SIGNING]), critical


def extension(number: int, value: str) -> tuple[Any, bool]:
    """Return one of Fulcio's extensions with plain text."""
    name = x509.ObjectIdentifier(f"{_FULCIO}.{number}")
    return x509.UnrecognizedExtension(name, value.encode()), False


def names(*given: x509.GeneralName) -> tuple[Any, bool]:
    return x509.SubjectAlternativeName(list(given or [x509.RFC822Name(SUBJECT)])), True


Change = Callable[[bytes], bytes]


def same(data: bytes) -> bytes:
    return data


@dataclass
class Sigstore:
    """One deployment; ``leaf`` and ``layer`` override the parts that a test varies."""

    root: Issued = field(default_factory=lambda: issue("root"))
    rekor: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    ctlog: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    def __post_init__(self) -> None:
        self.middle = issue("middle", self.root, path_length=0, extensions=[usage()])
        self.tsa_root = issue("tsa root")
        stamping = usage(ExtendedKeyUsageOID.TIME_STAMPING, critical=True)
        self.tsa = issue(
            "tsa", self.tsa_root, is_authority=False, extensions=[stamping]
        )

    @property
    def rekor_keys(self) -> LogKeys:
        return log_keys([pem_key(self.rekor)])

    @property
    def ctlog_keys(self) -> LogKeys:
        return log_keys([pem_key(self.ctlog)])

    def leaf(
        self,
        *extra: tuple[Any, bool],
        scts: int = 1,
        change: Change = same,
        begin: dt.datetime = SIGNED,
        end: dt.datetime = SIGNED + dt.timedelta(minutes=10),
        by: Issued | None = None,
        san: tuple[Any, bool] | None = None,
    ) -> Issued:
        """Return a signer's certificate; ``change`` is applied to its list of SCTs."""
        by = by or self.middle
        given = [usage(), san or names(), *(extra or (extension(1, ISSUER),))]
        key = new_key()

        def made(*more: tuple[Any, bool]) -> Issued:
            return issue(
                "",
                by,
                is_authority=False,
                extensions=[*given, *more],
                begin=begin,
                end=end,
                key=key,
            )

        if not scts:
            return made()
        body = made().certificate.tbs_certificate_bytes
        listed = change(self._scts(body, by, scts))
        value = x509.UnrecognizedExtension(_SCTS, asn1.octets(listed))
        return made((value, False))

    def _scts(self, body: bytes, by: Issued, count: int) -> bytes:
        moment = int(SIGNED.timestamp() * 1000)
        signed = (
            struct.pack(">BBQH", 0, 0, moment, 1)
            + hashlib.sha256(spki(by.key)).digest()
            + len(body).to_bytes(3)
            + body
            + b"\0\0"
        )
        found = b""
        for _ in range(count):
            signature = sign(self.ctlog, signed)
            one = b"\0" + hashlib.sha256(spki(self.ctlog)).digest()
            one += struct.pack(">QH", moment, 0) + b"\x04\x03"
            one += struct.pack(">H", len(signature)) + signature
            found += struct.pack(">H", len(one)) + one
        return struct.pack(">H", len(found)) + found

    def layer(
        self,
        signer: Issued,
        payload: bytes | None = None,
        *,
        at: dt.datetime | None = SIGNED + dt.timedelta(minutes=5),
        **annotations: str,
    ) -> Layer:
        """Return a signature with certificate, chain and (with ``at``) bundle."""
        payload = payload_for(DIGEST) if payload is None else payload
        signature = sign(signer.key, payload)
        given = {
            "dev.cosignproject.cosign/signature": b64(signature),
            **self._certificates(signer),
        }
        if at is not None:
            body = hashedrekord(payload, signature, pem(signer.certificate))
            given["dev.sigstore.cosign/bundle"] = self.bundle(body, at)
        return Layer(digest_of(payload), payload, {**given, **annotations})

    def attestation(
        self, signer: Issued, *, kind: str = "dsse", **statement: Any
    ) -> Layer:
        """Return a signed statement with a bundle of a kind."""
        envelope = envelope_of({**STATEMENT, **statement}, signer.key)
        body = entry_of(kind, envelope, pem(signer.certificate))
        at = SIGNED + dt.timedelta(minutes=5)
        given = {
            "dev.cosignproject.cosign/signature": "",
            **self._certificates(signer),
            "dev.sigstore.cosign/bundle": self.bundle(body, at),
        }
        return Layer(digest_of(envelope), envelope, given)

    def _certificates(self, signer: Issued) -> dict[str, str]:
        return {
            "dev.sigstore.cosign/certificate": pem(signer.certificate),
            "dev.sigstore.cosign/chain": pem(
                self.middle.certificate, self.root.certificate
            ),
        }

    def promise(self, body: bytes, at: dt.datetime) -> tuple[dict[str, Any], bytes]:
        """Return the log's signed content and its signature."""
        payload: dict[str, Any] = {
            "body": b64(body),
            "integratedTime": int(at.timestamp()),
            "logIndex": 7,
            "logID": hashlib.sha256(spki(self.rekor)).hexdigest(),
        }
        return payload, sign(self.rekor, rfc8785.dumps(payload))

    def bundle(self, body: bytes, at: dt.datetime) -> str:
        payload, signature = self.promise(body, at)
        return json.dumps({"SignedEntryTimestamp": b64(signature), "Payload": payload})

    def found(self, body: bytes, at: dt.datetime, others: int = 0) -> dict[str, Any]:
        """Return the entry as a log search returns it, in a tree of several."""
        payload, signature = self.promise(body, at)
        leaf = hashlib.sha256(b"\0" + body).digest()
        root, path = leaf, []
        for number in range(others):
            other = hashlib.sha256(b"%d" % number).digest()
            path.append(other.hex())
            root = hashlib.sha256(b"\1" + root + other).digest()
        proof = {
            "hashes": path,
            "logIndex": 0,
            "treeSize": 2**others,
            "rootHash": root.hex(),
        }
        verification = {
            "signedEntryTimestamp": b64(signature),
            "inclusionProof": proof,
        }
        return {leaf.hex(): {**payload, "verification": verification}}

    def timestamp(self, signed: bytes, at: dt.datetime) -> bytes:
        """Return a response of the timestamp authority."""
        algorithm = asn1.sequence(asn1.oid(_SHA256))
        content = "1.2.840.113549.1.9.16.1.4"
        info = asn1.sequence(
            asn1.integer(1),
            asn1.oid("1.2.3.4"),
            asn1.sequence(algorithm, asn1.octets(hashlib.sha256(signed).digest())),
            asn1.integer(42),
            asn1.tlv(0x18, at.strftime("%Y%m%d%H%M%SZ").encode()),
        )
        attributes = [
            asn1.sequence(
                asn1.oid("1.2.840.113549.1.9.3"), asn1.set_of(asn1.oid(content))
            ),
            asn1.sequence(
                asn1.oid("1.2.840.113549.1.9.4"),
                asn1.set_of(asn1.octets(hashlib.sha256(info).digest())),
            ),
        ]
        signature = sign(self.tsa.key, asn1.set_of(*attributes))
        held = asn1.set_of(*attributes)
        signer = asn1.sequence(
            asn1.integer(1),
            asn1.sequence(
                self.tsa.certificate.issuer.public_bytes(),
                asn1.integer(self.tsa.certificate.serial_number),
            ),
            algorithm,
            b"\xa0" + held[1:],
            asn1.sequence(asn1.oid("1.2.840.10045.4.3.2")),
            asn1.octets(signature),
        )
        signed_data = asn1.sequence(
            asn1.integer(3),
            asn1.set_of(algorithm),
            asn1.sequence(asn1.oid(content), asn1.tlv(0xA0, asn1.octets(info))),
            asn1.tlv(0xA0, der(self.tsa.certificate)),
            asn1.set_of(signer),
        )
        token = asn1.sequence(
            asn1.oid("1.2.840.113549.1.7.2"), asn1.tlv(0xA0, signed_data)
        )
        return asn1.sequence(asn1.sequence(asn1.integer(0)), token)


STATEMENT: Final = {
    "_type": "https://in-toto.io/Statement/v0.1",
    "predicateType": "https://example.com/review/v1",
    "subject": [{"name": "i", "digest": {"sha256": DIGEST[7:]}}],
    "predicate": {"author": "alice"},
}


def envelope_of(statement: dict[str, Any], key: ec.EllipticCurvePrivateKey) -> bytes:
    body = json.dumps(statement).encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(IN_TOTO), IN_TOTO.encode(), len(body), body)
    return json.dumps(
        {
            "payloadType": IN_TOTO,
            "payload": b64(body),
            "signatures": [{"sig": b64(sign(key, signed))}],
        }
    ).encode()


def hashedrekord(payload: bytes, signature: bytes, key: str) -> bytes:
    digest = hashlib.sha256(payload).hexdigest()
    spec: dict[str, Any] = {
        "data": {"hash": {"algorithm": "sha256", "value": digest}},
        "signature": {
            "content": b64(signature),
            "publicKey": {"content": b64(key.encode())},
        },
    }
    return rfc8785.dumps({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec})


def entry_of(kind: str, envelope: bytes, key: str) -> bytes:
    """Return an entry of kind dsse, or of kind intoto in one of its versions."""
    digest = {"algorithm": "sha256", "value": hashlib.sha256(envelope).hexdigest()}
    body = json.loads(envelope)
    hashed = hashlib.sha256(base64.b64decode(body["payload"])).hexdigest()
    payload = {"algorithm": "sha256", "value": hashed}
    held, signature = b64(key.encode()), body["signatures"][0]["sig"]
    version = "0.0.1"
    spec: dict[str, Any]
    if kind == "dsse":
        one = {"signature": signature, "verifier": held}
        spec = {"envelopeHash": digest, "payloadHash": payload, "signatures": [one]}
    elif kind == "intoto":
        spec = {"content": {"hash": digest, "payloadHash": payload}, "publicKey": held}
    else:
        kind, version = "intoto", "0.0.2"
        one = {"sig": signature, "publicKey": held}
        inner = {"payloadType": IN_TOTO, "signatures": [one]}
        content = {"envelope": inner, "hash": digest, "payloadHash": payload}
        spec = {"content": content}
    return rfc8785.dumps({"apiVersion": version, "kind": kind, "spec": spec})
